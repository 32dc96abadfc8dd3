"""``weft.linalg``: solutions and decompositions of small matrices (``weft.Matrix``), of floats.

Written in the language itself: in a kernel they are inlined, loops over rows unrolled, and have
derivatives of any order; in Python they compute with the elements as they are. Integers become
floats. Matrices are divided by a power of two first, so that squares neither overflow nor vanish.
Sizes are meant to be small: 6 x 6 compiles in seconds.

Derivatives are those of the decomposition where it has some. Eigenvectors of eigenvalues that are
equal, and singular vectors of singular values that are, have none: they come out as 1e38 and more,
infinite or NaN, or as huge where eigenvalues differ by rounding alone. Of equal eigenvalues and
singular values themselves, derivatives are those along the vectors that were found.
``polar_decompose`` has derivatives at equal singular values, and where one is (nearly) 0 those of
the singular value decomposition.
"""

from __future__ import annotations

from typing import Any

from weft.lang import math
from weft.lang.elements import needs
from weft.lang.loops import static, stop_grad
from weft.lang.vectors import Matrix, Vector

_NONE = 1e38  # a derivative that is none, in float32, too
_SINGULAR = (
    1e-4  # a determinant, of a matrix whose largest element is 1..2, from which on it is far
)


def _unit(a: Any) -> Any:
    """The power of two next to the largest magnitude in ``a``; 1 of zeros. Its derivative is 0."""
    largest = abs(a).max()
    half = math.exp2(math.floor(math.log2(0.5 * largest)))  # which neither overflows nor rounds up
    return math.select(half > 0.0, math.select(2.0 * half <= largest, 2.0 * half, half), 1.0)


def _root(x: Any) -> Any:
    """The square root, with derivative 0 at 0."""
    zero = x == 0.0
    return math.select(zero, 0.0, math.sqrt(math.select(zero, 1.0, x)))


def _square(a: Any, what: str) -> None:
    needs(len(a.shape) == 2 and a.shape[0] == a.shape[1], what)


# --- elimination ----------------------------------------------------------------------------------
def lu(a: Any, dtype: Any = None) -> Any:
    """``p, l, u`` of a square matrix: ``a = p @ l @ u``, as ``torch.linalg.lu`` gives them: rows
    are permuted so that each pivot is the first of the largest magnitude. A pivot of 0, of a
    singular matrix, leaves zeros below it."""
    _square(a, "lu() takes a square matrix")
    n = a.shape[0]
    u, lower, p = a * 1.0, math.eye(n), math.eye(n)
    for k in static(range(n)):
        best, place = abs(u[k, k]), k
        for i in static(range(k + 1, n)):
            larger = abs(u[i, k]) > best
            best = math.select(larger, abs(u[i, k]), best)
            place = math.select(larger, i, place)
        for i in static(range(k + 1, n)):
            swap = place == i
            for j in static(range(n)):
                first, other = u[k, j], u[i, j]
                u[k, j] = math.select(swap, other, first)
                u[i, j] = math.select(swap, first, other)
                first, other = p[j, k], p[j, i]
                p[j, k] = math.select(swap, other, first)
                p[j, i] = math.select(swap, first, other)
            for j in static(range(k)):
                first, other = lower[k, j], lower[i, j]
                lower[k, j] = math.select(swap, other, first)
                lower[i, j] = math.select(swap, first, other)
        over = math.select(u[k, k] == 0.0, 1.0, u[k, k])
        for i in static(range(k + 1, n)):
            factor = u[i, k] / over
            lower[i, k] = factor
            u[i, k] = 0.0
            for j in static(range(k + 1, n)):
                u[i, j] -= factor * u[k, j]
    return p, lower, u


def solve(a: Any, b: Any, dtype: Any = None) -> Any:
    """``x`` with ``a @ x = b``, by elimination with partial pivoting. ``b`` is a vector, or a
    matrix of columns. Infinite or NaN where ``a`` is singular."""
    _square(a, "solve() takes a square matrix")
    n = a.shape[0]
    needs(b.shape[0] == n, "solve(a, b): `b` has another number of rows than `a`")
    p, lower, u = lu(a)
    x = p.transpose() @ (b * 1.0)
    for k in static(range(n)):
        for i in static(range(k + 1, n)):
            x = _with_row(x, i, x[i] - lower[i, k] * x[k])
    for k in static(range(n - 1, -1, -1)):
        rest = x[k]
        for j in static(range(k + 1, n)):
            rest = rest - u[k, j] * x[j]
        x = _with_row(x, k, rest / u[k, k])
    return x


def _with_row(x: Any, i: Any, row: Any) -> Any:
    """``x`` with another element, or row, ``i``."""
    if static(len(x.shape) == 1):
        x[i] = row
    else:
        for j in static(range(x.shape[1])):
            x[i, j] = row[j]
    return x


def cholesky(a: Any, dtype: Any = None) -> Any:
    """The lower triangle ``l`` with positive diagonal and ``a = l @ l.transpose()``, of a symmetric
    positive definite matrix, of which the lower triangle is read. NaN where it is not definite."""
    _square(a, "cholesky() takes a square matrix")
    n = a.shape[0]
    lower = Matrix.zero(float, n, n)
    for j in static(range(n)):
        rest = a[j, j] * 1.0
        for k in static(range(j)):
            rest = rest - lower[j, k] * lower[j, k]
        lower[j, j] = math.sqrt(rest)
        for i in static(range(j + 1, n)):
            rest = a[i, j] * 1.0
            for k in static(range(j)):
                rest = rest - lower[i, k] * lower[j, k]
            lower[i, j] = rest / lower[j, j]
    return lower


# --- orthogonal factors ---------------------------------------------------------------------------
def qr(a: Any, dtype: Any = None) -> Any:
    """``q, r`` of a matrix of ``n`` rows and ``m <= n`` columns: ``a = q @ r``, ``q`` of
    orthonormal columns (n x m), ``r`` an upper triangle (m x m). By Householder's reflections with
    LAPACK's signs, so that they are those of ``torch.linalg.qr``."""
    needs(
        len(a.shape) == 2 and a.shape[0] >= a.shape[1],
        "qr() takes as many rows as columns, or more",
    )
    n, m = a.shape[0], a.shape[1]
    unit = _unit(a)
    full, r = _reflected(a / unit)
    q, top = Matrix.zero(float, n, m), Matrix.zero(float, m, m)
    for j in static(range(m)):
        for i in static(range(n)):
            q[i, j] = full[i, j]
        for i in static(range(j + 1)):
            top[i, j] = r[i, j] * unit
    return q, top


def _reflected(r: Any) -> Any:
    """The orthogonal matrix (n x n) and the triangle (n x m) whose product ``r`` is.

    By the reflections of LAPACK's larfg, which leaves a column with zeros below the diagonal as it
    is. That has no derivative of a reflection: here such a column is reflected as others are, and
    the sign taken back (``kept``). A column of zeros stays without one (``none``)."""
    n, m = r.shape[0], r.shape[1]
    q = math.eye(n)
    for k in static(range(m if m < n else n - 1)):
        square, rest = 0.0, 0.0
        for i in static(range(k + 1, n)):
            square = square + r[i, k] * r[i, k]
            rest = rest + abs(r[i, k])
        flat = square == 0.0
        kept = flat & (abs(r[k, k]) > rest)
        none = flat & (not kept)
        # Where squares may vanish, all is over the diagonal's element.
        unit = stop_grad(math.select(kept, r[k, k], 1.0))
        alpha, below = r[k, k] / unit, 0.0
        for i in static(range(k + 1, n)):
            r[i, k] = r[i, k] / unit
            below = below + r[i, k] * r[i, k]
        beta = -math.copysign(math.sqrt(math.select(none, 1.0, alpha * alpha + below)), alpha)
        tau = math.select(none, 0.0, (beta - alpha) / beta)
        over = math.select(none, 1.0, alpha - beta)
        for i in static(range(k + 1, n)):
            r[i, k] = r[i, k] / over
        for j in static(range(k + 1, m)):
            share = r[k, j]
            for i in static(range(k + 1, n)):
                share = share + r[i, k] * r[i, j]
            r[k, j] = math.select(kept, tau * share - r[k, j], r[k, j] - tau * share)
            for i in static(range(k + 1, n)):
                r[i, j] -= tau * share * r[i, k]
        for j in static(range(n)):
            share = q[j, k]
            for i in static(range(k + 1, n)):
                share = share + q[j, i] * r[i, k]
            q[j, k] = math.select(kept, tau * share - q[j, k], q[j, k] - tau * share)
            for i in static(range(k + 1, n)):
                q[j, i] -= tau * share * r[i, k]
        size = -beta / math.select(kept, alpha, 1.0)  # 1 where the column is kept
        r[k, k] = math.select(flat, math.select(none, 1.0, size) * r[k, k], beta)
        for i in static(range(k + 1, n)):
            r[i, k] = 0.0
    return q, r


def _rotation(difference: Any, product: Any) -> Any:
    """Tangent, cosine and sine of the rotation that makes the 2 x 2 matrix with ``product`` beside
    the diagonal a diagonal one (Golub and Van Loan, 8.5.2), ``difference`` being that of the
    diagonal's elements; and the sine with the derivative that the vectors have, ``_NONE`` where
    they are not determined."""
    square = difference * difference + 4.0 * product * product
    flat = square == 0.0
    root = math.copysign(math.sqrt(math.select(flat, 1.0, square)), difference)
    tangent = math.select(flat, 0.0, 2.0 * product / (difference + root))
    cosine = 1.0 / math.sqrt(1.0 + tangent * tangent)
    # A product with 0 whose derivative nobody takes for one; where none is asked for, it is 0.
    none = math.select(flat & (product == 0.0), product * _NONE, 0.0)
    return tangent, cosine, tangent * cosine, tangent * cosine + none


def _rotate(v: Any, p: Any, q: Any, cosine: Any, sine: Any) -> Any:
    """``v`` with its columns ``p`` and ``q`` rotated."""
    for k in static(range(v.shape[0])):
        first, other = v[k, p], v[k, q]
        v[k, p] = cosine * first - sine * other
        v[k, q] = sine * first + cosine * other
    return v


def sym_eig(a: Any, dtype: Any = None) -> Any:
    """``values, vectors`` of a symmetric matrix: the eigenvalues, the smallest first, as a vector,
    and orthonormal eigenvectors as the columns of a matrix, as ``torch.linalg.eigh`` gives them (up
    to signs). By Jacobi's rotations. Of a matrix that is not symmetric, its symmetric part."""
    _square(a, "sym_eig() takes a square matrix")
    n = a.shape[0]
    unit = _unit(a)
    m = (a + a.transpose()) / (2.0 * unit)
    v = math.eye(n)
    for _ in range(1 if n < 3 else 6 if n < 4 else 9):
        for p in static(range(n)):
            for q in static(range(p + 1, n)):
                product = m[p, q]
                tangent, cosine, sine, turned = _rotation(m[q, q] - m[p, p], product)
                m[p, p] -= tangent * product
                m[q, q] += tangent * product
                m[p, q] = 0.0
                m[q, p] = 0.0
                for k in static(range(n)):
                    if static(k != p and k != q):
                        first, other = m[k, p], m[k, q]
                        m[k, p] = cosine * first - sine * other
                        m[k, q] = sine * first + cosine * other
                        m[p, k] = m[k, p]
                        m[q, k] = m[k, q]
                v = _rotate(v, p, q, cosine, turned)
    values = Vector.zero(float, n)
    for i in static(range(n)):
        values[i] = m[i, i] * unit
    for i in static(range(n)):
        for j in static(range(n - 1 - i)):
            swap = values[j + 1] < values[j]
            values, v = _exchanged(values, v, j, swap)
    return values, v


def _exchanged(values: Any, v: Any, j: Any, swap: Any) -> Any:
    """``values`` and the columns of ``v`` with those at ``j`` and ``j + 1`` exchanged, if ``swap``
    says so."""
    first, other = values[j], values[j + 1]
    values[j] = math.select(swap, other, first)
    values[j + 1] = math.select(swap, first, other)
    for k in static(range(v.shape[0])):
        first, other = v[k, j], v[k, j + 1]
        v[k, j] = math.select(swap, other, first)
        v[k, j + 1] = math.select(swap, first, other)
    return values, v


def svd(a: Any, dtype: Any = None) -> Any:
    """``u, s, v`` of a matrix (n x m): ``a = u @ diag(s) @ v.transpose()``, the singular values
    ``s`` a vector, the largest first, and columns of ``u`` and ``v`` orthonormal: of ``k``, the
    smaller of ``n`` and ``m``. (``torch.linalg.svd`` gives ``v.transpose()``; ``weft.svd`` gives
    ``s`` as a matrix.) By Jacobi's rotations of columns (Golub and Van Loan, 8.6.3); the error of
    all singular values is a rounding of the largest."""
    needs(len(a.shape) == 2, "svd() takes a matrix")
    if static(a.shape[0] < a.shape[1]):
        u, s, v = _tall_svd(a.transpose())
        return v, s, u
    return _tall_svd(a)


def _tall_svd(a: Any) -> Any:
    n, m = a.shape[0], a.shape[1]
    unit = _unit(a)
    w = a / unit
    v = math.eye(m)
    for _ in range(1 if m < 3 else 7 if m < 4 else 10):
        for p in static(range(m)):
            for q in static(range(p + 1, m)):
                before, after, product = 0.0, 0.0, 0.0
                for k in static(range(n)):
                    before = before + w[k, p] * w[k, p]
                    after = after + w[k, q] * w[k, q]
                    product = product + w[k, p] * w[k, q]
                _tangent, cosine, sine, turned = _rotation(after - before, product)
                w = _rotate(w, p, q, cosine, sine)
                v = _rotate(v, p, q, cosine, turned)
    s = Vector.zero(float, m)
    for j in static(range(m)):
        norm = 0.0
        for k in static(range(n)):
            norm = norm + w[k, j] * w[k, j]
        s[j] = _root(norm)
    for i in static(range(m)):
        for j in static(range(m - 1 - i)):
            swap = s[j + 1] > s[j]
            _same, w = _exchanged(Vector(s), w, j, swap)
            s, v = _exchanged(s, v, j, swap)
    full, r = _reflected(w)
    u = Matrix.zero(float, n, m)
    for j in static(range(m)):
        sign = math.select(r[j, j] < 0.0, -1.0, 1.0)
        for i in static(range(n)):
            u[i, j] = full[i, j] * sign
    return u, s * unit, v


def polar_decompose(a: Any, dtype: Any = None) -> Any:
    """``u, p`` of a square matrix: ``a = u @ p``, ``u`` orthogonal, ``p`` symmetric and without
    negative eigenvalues. By Newton's iteration (Higham, Functions of Matrices, 8.3), and of nearly
    singular matrices by the singular values."""
    _square(a, "polar_decompose() takes a square matrix")
    n = a.shape[0]
    x = a / _unit(a)
    u = x
    if abs(x.determinant()) > _SINGULAR:
        for k in range(11):
            near = x.inverse().transpose()
            scale = 1.0
            if k < 4:
                scale = abs(x.determinant()) ** (-1.0 / n)
            x = 0.5 * (scale * x + near / scale)
        u = x
    else:
        left, _values, right = _tall_svd(x)
        u = left @ right.transpose()
    p = u.transpose() @ a
    return u, 0.5 * (p + p.transpose())


# --- Taichi's -------------------------------------------------------------------------------------
def taichi_svd(a: Any, dtype: Any = None) -> Any:
    """``weft.svd``: as ``weft.linalg.svd`` of a square matrix, the singular values on the diagonal
    of a matrix."""
    _square(a, "weft.svd() takes a square matrix")
    u, s, v = _tall_svd(a)
    sigma = math.eye(a.shape[0])
    for i in static(range(a.shape[0])):
        sigma[i, i] = s[i]
    return u, sigma, v


def eig(a: Any, dtype: Any = None) -> Any:
    """``values, vectors`` of a 2 x 2 matrix. ``values``: a row for each eigenvalue, its real and
    its imaginary part. ``vectors`` (4 x 2): a column for each eigenvector, of length 1, with the
    real and the imaginary part of its first element and those of its second. Of one double
    eigenvalue there may be one direction only: both columns have it."""
    needs(
        len(a.shape) == 2 and a.shape[0] == 2 and a.shape[1] == 2,
        "eig() takes a 2x2 matrix; sym_eig() takes a symmetric one of any size, torch.linalg.eig "
        "in the host part any other (docs/port-taichi.md)",
    )
    unit = _unit(a)
    m = a / unit
    half = 0.5 * (m[0, 0] - m[1, 1])
    gap = half * half + m[0, 1] * m[1, 0]
    real, root = gap >= 0.0, _root(abs(gap))
    middle = 0.5 * (m[0, 0] + m[1, 1])
    apart, turn = math.select(real, root, 0.0), math.select(real, 0.0, root)
    values = Matrix(
        [[(middle + apart) * unit, turn * unit], [(middle - apart) * unit, -turn * unit]]
    )
    plain = (abs(m[0, 1]) + abs(m[1, 0]) + abs(half)) == 0.0
    first = _eigenvector(half, m[0, 1], m[1, 0], apart, turn, plain, 0.0)
    other = _eigenvector(half, m[0, 1], m[1, 0], -apart, -turn, plain, 1.0)
    vectors = Matrix([[first[0], other[0]], [first[1], other[1]],
                      [first[2], other[2]], [first[3], other[3]]])  # fmt: skip
    return values, vectors


def _eigenvector(
    half: Any, right: Any, left: Any, apart: Any, turn: Any, plain: Any, axis: float
) -> Any:
    """The larger column of the matrix less its other eigenvalue (a multiple of the eigenvector by
    Cayley and Hamilton), of length 1. Of a multiple of the identity, ``plain``, the unit vector."""
    first = Vector([half + apart, turn, left, 0.0 * left])
    other = Vector([right, 0.0 * right, apart - half, turn])
    larger = math.select(first.norm_sqr() >= other.norm_sqr(), first, other)
    unit = Vector([1.0 - axis, 0.0, axis, 0.0])
    chosen = math.select(plain, unit, larger)
    return chosen / math.sqrt(chosen.norm_sqr())
