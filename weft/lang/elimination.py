"""Determinants and inverses of matrices from 5 x 5 on, by elimination: n**3 operations.

Written once for both meanings of a kernel: ``Arithmetic`` is Python's own (``vectors.py``), or
writes IR (``frontend/aggregates.py``). Rows change places by selects, so that there are no branches
and derivatives are those of the chosen elements.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from weft.values import frozen

Rows = list[list[Any]]


@frozen
class Arithmetic:
    """Operations on elements. ``larger`` and ``equal`` give what ``select`` takes as condition."""

    binary: Callable[[str, Any, Any], Any]  # with one of + - * /
    negate: Callable[[Any], Any]
    magnitude: Callable[[Any], Any]
    larger: Callable[[Any, Any], Any]
    equal: Callable[[Any, Any], Any]
    select: Callable[[Any, Any, Any], Any]

    def less_product(self, a: Any, x: Any, y: Any) -> Any:
        """``a - x * y``."""
        return self.binary("-", a, self.binary("*", x, y))

    def swapped(self, condition: Any, a: Any, b: Any) -> tuple[Any, Any]:
        """``(b, a)`` where ``condition`` holds, else ``(a, b)``."""
        return self.select(condition, b, a), self.select(condition, a, b)

    def swap_rows(self, condition: Any, rows: Rows, i: int, j: int, begin: int = 0) -> None:
        for k in range(begin, len(rows[i])):
            rows[i][k], rows[j][k] = self.swapped(condition, rows[i][k], rows[j][k])

    def swap_columns(self, condition: Any, rows: Rows, i: int, j: int, begin: int = 0) -> None:
        for row in rows[begin:]:
            row[i], row[j] = self.swapped(condition, row[i], row[j])


def determinant(cx: Arithmetic, matrix: Rows) -> Any:
    """Of floats, by elimination with complete pivoting (Golub and Van Loan, 3.4.8).

    Once a pivot is 0, all that is left is: singular matrices have a determinant of 0, and the
    derivatives that they should have (with partial pivoting, a column of zeros would hide them).
    """
    rows, n = [list(row) for row in matrix], len(matrix)
    result: Any = None
    for k in range(n):
        flips = _pivot(cx, rows, k)
        pivot = signed = rows[k][k]
        for flip in flips:
            signed = cx.select(flip, cx.negate(signed), signed)
        result = signed if result is None else cx.binary("*", result, signed)
        over = cx.select(cx.equal(pivot, 0.0), 1.0, pivot)
        for i in range(k + 1, n):
            factor = cx.binary("/", rows[i][k], over)
            for j in range(k + 1, n):
                rows[i][j] = cx.less_product(rows[i][j], factor, rows[k][j])
    return result


def _pivot(cx: Arithmetic, rows: Rows, k: int) -> list[Any]:
    """Brings the largest element of the rows and columns from ``k`` on to the diagonal. Returns the
    conditions of the swaps."""
    n = len(rows)

    def larger(a: Any, b: Any) -> Any:
        return cx.select(cx.larger(b, a), b, a)

    sizes = [reduce(larger, map(cx.magnitude, row[k:])) for row in rows[k:]]
    flips = []
    for i in range(k + 1, n):
        flips.append(cx.larger(sizes[i - k], sizes[0]))
        sizes[0] = cx.select(flips[-1], sizes[i - k], sizes[0])
        cx.swap_rows(flips[-1], rows, k, i, begin=k)
    for j in range(k + 1, n):
        flips.append(cx.larger(cx.magnitude(rows[k][j]), cx.magnitude(rows[k][k])))
        cx.swap_columns(flips[-1], rows, k, j, begin=k)
    return flips


def whole_determinant(cx: Arithmetic, matrix: Rows) -> Any:
    """Of integers, without a division: exact, and modulo 2**bits where numbers wrap.

    R. S. Bird, "A simple division-free algorithm for computing determinants", 2011: n - 1 products
    of a triangular matrix and ``matrix``. None stands for 0.
    """
    n = len(matrix)

    def plus(a: Any, b: Any) -> Any:
        return (b if a is None else a) if a is None or b is None else cx.binary("+", a, b)

    power: Rows = matrix
    for step in range(n - 1):
        triangle: Rows = [[None] * n for _ in range(n)]
        below: Any = None  # the sum of the diagonal below row i
        for i in reversed(range(n)):
            triangle[i][i + 1 :] = power[i][i + 1 :]
            triangle[i][i] = None if below is None else cx.negate(below)
            below = plus(below, power[i][i])
        sides = range(1 if step == n - 2 else n)
        power = [[None] * n for _ in range(n)]
        for i in sides:
            for j in range(i, len(sides)):
                for k in range(i, n):
                    if triangle[i][k] is not None:
                        term = cx.binary("*", triangle[i][k], matrix[k][j])
                        power[i][j] = plus(power[i][j], term)
    return power[0][0] if n % 2 else cx.negate(power[0][0])


def inverse(cx: Arithmetic, matrix: Rows) -> Rows:
    """Of floats, by Gauss-Jordan elimination in place, with partial pivoting.

    Infinite or NaN where the matrix is singular.
    """
    rows, n = [list(row) for row in matrix], len(matrix)
    swaps: list[tuple[Any, int, int]] = []
    for k in range(n):
        for i in range(k + 1, n):
            swap = cx.larger(cx.magnitude(rows[i][k]), cx.magnitude(rows[k][k]))
            cx.swap_rows(swap, rows, k, i)
            swaps.append((swap, k, i))
        over = cx.binary("/", 1.0, rows[k][k])
        rows[k] = [over if j == k else cx.binary("*", a, over) for j, a in enumerate(rows[k])]
        for i in range(n):
            if i == k:
                continue
            factor = rows[i][k]
            for j in range(n):
                if j != k:
                    rows[i][j] = cx.less_product(rows[i][j], factor, rows[k][j])
            rows[i][k] = cx.negate(cx.binary("*", factor, over))
    for swap, i, j in reversed(swaps):
        cx.swap_columns(swap, rows, i, j)
    return rows
