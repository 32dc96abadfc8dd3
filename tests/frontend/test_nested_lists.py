"""Lists of lists in a device loop: read and stored by subscripts of run time."""

from __future__ import annotations

import pytest
import torch

import weft

TABLE = [[1.0, -2.0, 1.0], [0.5, 0.0, -0.5]]


def added(x, out):
    for i in range(out.shape[0]):
        t = [[0.0] * 3 for _ in range(2)]
        for k in range(x.shape[0]):
            t[k % 2][k % 3] += x[k]
        for a in range(2):
            for b in range(3):
                out[i] += t[a][b] * (a + 2 * b) * i


def written(x, out):
    for i in range(out.shape[0]):
        t = [[1, 2], [3, 4]]
        k = i % 2
        t[k][1 - k] = x[i]  # a list of floats, from its first element on
        out[i] = t[0][0] + 2 * t[0][1] + 3 * t[1][0] + 4 * t[i % 2][i // 3]


def by_name(x, out):
    for i in range(out.shape[0]):
        t = [[0.0] * 3 for _ in range(2)]
        row = t[i % 2]
        row[1] = x[i]
        other = t[0] if i % 3 == 0 else t[1]
        other[2] += 1.0
        out[i] = t[0][1] - t[1][1] + 3 * t[0][2] - t[1][2]


def gone_over(x, out):
    for i in range(out.shape[0]):
        t = [[0] * 3 for _ in range(2)]
        s = 0
        for row in t:
            for j in range(len(row)):
                row[j] += i + j
            s += sum(row) + max(row)
        for k, row in enumerate(t):
            row[k] *= 2
        out[i] = s + len(t) + t[1][1]


def deeper(x, out):
    for i in range(out.shape[0]):
        t = [[[0.0] * 2 for _ in range(3)] for _ in range(2)]
        for k in range(x.shape[0]):
            t[k % 2][k % 3][(k + i) % 2] -= x[k]
        out[i] = t[1][2][0] + t[0][1][1] + t[-1][-1][-1]


def swapped(x, out):
    for i in range(out.shape[0]):
        t = [[x[i], 0.0], [0.0, 2 * x[i]]]
        j = i % 2
        t[j][0], t[j][1] = t[j][1], t[j][0]
        out[i] = t[0][0] - 3 * t[0][1] + 5 * t[1][0] + 7 * t[1][1]


def bump(t, k, v):
    t[k][k] += v


def handed(x, out):
    for i in range(out.shape[0]):
        t = [[0.0, x[j] + 1] for j in range(2)]
        t[0][0] = 1.0
        bump(t, i % 2, x[i])
        out[i] = t[0][0] + t[1][1] * t[0][1]


def looked_up(x, out):
    for i in range(out.shape[0]):
        w = [[1.0, 2.0], [3.0, x[0]]]
        row = TABLE[i % 2]
        out[i] = TABLE[i % 2][i % 3] * x[i] + row[1] + w[i % 2][(i + 1) % 2]


def of_integers(x, out):
    for i in range(out.shape[0]):
        t, a = [[0] * 2 for _ in range(2)], [0] * 3
        t[i % 2][0] += x[i]  # floats, from the start on
        a[i % 3] -= 0.5
        out[i] = t[0][0] + 2 * t[1][0] + a[0]


def exchange(a, i, j):
    a[i], a[j] = a[j], a[i]


def partition(a, lo, hi):
    at = lo
    for j in range(lo, hi):
        if a[j] < a[hi]:
            exchange(a, at, j)
            at += 1
    exchange(a, at, hi)
    return at


def selected(x, out):
    for i in range(out.shape[0]):
        a = [x[(i + k) % 7] for k in range(5)]  # an array, for a function stores into it
        lo, hi = 0, 4
        while lo < hi:
            m = partition(a, lo, hi)
            if m == 2:
                break
            if m < 2:
                lo = m + 1
            else:
                hi = m - 1
        t = [[x[i] * k + j for j in range(3)] for k in range(3)]
        exchange(t[1], 0, 1)
        out[i] = a[2] + 10 * t[1][0]


def pushed(a, v):
    a.append(v)
    a += [v * 2]


def grown(x, out):
    for i in range(out.shape[0]):
        a = [1.0]
        pushed(a, x[i])
        p, q = [x[i], 2.0], [3.0, 4.0]
        p, q = q, p
        p[0] += 5.0
        out[i] = sum(a) + len(a) + p[0] + 10 * q[0]


ALL = [
    of_integers, added, written, by_name, gone_over, deeper, swapped, handed, looked_up, selected,
    grown,
]  # fmt: skip


@pytest.mark.parametrize("plain", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize("debug", [False, True])
def test_as_in_python(plain, debug):
    x, out = torch.randn(7, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    expected = out.clone()
    plain(x.clone(), expected)
    kernel = weft.kernel(debug=debug)(plain)
    for call in (kernel, kernel.interpret):
        found = out.clone()
        call(x.clone(), found)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("plain", [added, deeper, handed], ids=lambda f: f.__name__)
def test_gradients(plain):
    kernel = weft.kernel(plain)

    def call(x):
        out = torch.zeros(5, dtype=torch.float64)
        kernel(x, out)
        return out

    assert torch.autograd.gradcheck(call, torch.randn(7, dtype=torch.float64, requires_grad=True))


def test_debug_mode_checks_each_subscript():
    @weft.kernel(debug=True)
    def beyond(out, n: int):
        for i in range(1):
            t = [[0.0] * 3 for _ in range(2)]
            t[i][n] = 1.0
            out[i] = t[n - 3][0]

    with pytest.raises(weft.KernelIndexError, match="dimension 1 has 3 elements"):
        beyond(torch.zeros(1), 3)


def rows_exchanged(x, out):
    for i in range(out.shape[0]):
        a = [
            [x[(3 * r + c + i) % 5] + 4.0 * (r == c) for c in range(3)] + [1.0 * r]
            for r in range(3)
        ]
        for c in range(3):
            p = max(range(c, 3), key=lambda r: abs(a[r][c]))
            a[c], a[p] = a[p], a[c]
            for r in range(3):
                if r != c:
                    f = a[r][c] / a[c][c]
                    for k in range(c, 4):
                        a[r][k] -= f * a[c][k]
        out[i] = sum(a[r][3] / a[r][r] for r in range(3))
        t = [[[0.0] * 2 for _ in range(3)] for _ in range(4)]
        for j in range(24):
            t[j // 6][j // 2 % 3][j % 2] = x[(j + i) % 5] * j
        t[0], t[3] = t[3], t[0]
        t[1][i % 3], t[1][2] = t[1][2], t[1][i % 3]
        if x[i] > 0:
            t[i % 4], t[1] = t[1], t[i % 4]
        out[i] += t[0][1][0] + 2 * t[3][2][1] + 3 * t[1][0][0] + 5 * t[1][2][1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_change_places(dtype):
    x = torch.randn(5, dtype=dtype)
    expected, out = torch.zeros(5, dtype=dtype), torch.zeros(5, dtype=dtype)
    rows_exchanged(x, expected)
    weft.kernel(rows_exchanged)(x, out)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)


def exchanged_with_a_name(x):
    for i in range(3):
        t = [[0.0] * 3 for _ in range(2)]
        t[0][0] = x[i]
        row = t[0] if x[i] > 0 else t[1]
        t[0], t[1] = t[1], t[0]
        x[i] = row[0]


def one_list(x):
    for i in range(3):
        t = [[0.0] * 3] * 2
        t[i % 2][0] = 1.0
        x[i] = t[0][0]


def named_list(x):
    for i in range(3):
        row = [0.0, 1.0]
        t = [row, [2.0, 3.0]]
        t[i % 2][0] = 1.0
        x[i] = row[0]


def new_row(x):
    for i in range(3):
        t = [[0.0] * 3 for _ in range(2)]
        t[0][0] = 1.0
        t[1] = t[0]
        x[i] = t[1][0]


def joined(x):
    for i in range(3):
        t = [[0.0] * 3 for _ in range(2)]
        t[0][0] = 1.0
        x[i] = len(t[0] + t[1])


def repeated(x):
    for i in range(3):
        t = [[0.0] * 3 for _ in range(2)]
        t[0][0] = 1.0
        x[i] = len(t[0] * 2)


def compared(x):
    for i in range(3):
        t = [[0.0] * 3 for _ in range(2)]
        t[i][0] = 1.0
        x[i] = t[0] == t[1]


def sliced(x):
    for i in range(3):
        t = [[0.0] * 3 for _ in range(2)]
        a = t[0][1:]
        t[0][1] = 1.0
        x[i] = a[0]


def copied(x):
    for i in range(3):
        t = [[0.0] * 3 for _ in range(2)]
        a = t[0].copy()
        t[0][1] = 1.0
        x[i] = a[1]


def extended(x):
    for i in range(3):
        t = [[0.0] * 3 for _ in range(2)]
        t[0][1] = 1.0
        t[0] += [2.0]
        x[i] = t[0][3]


def with_shared_rows(x):
    for i in range(1):
        t = [[x[i], 1.0], [2.0, 3.0]]
        u = t + [[4.0, 5.0]]  # noqa: RUF005
        u[0][0] = 100.0  # which is t[0][0]
        x[i] = t[0][0]


REFUSED = {
    with_shared_rows: "an element of a tuple of 2 cannot be assigned here",
    one_list: "a list that holds one list several times, and is stored into",
    named_list: "an element of a tuple of 2 cannot be assigned here",
    exchanged_with_a_name: "rows of `t` are exchanged, and `row` is one of them",
    new_row: "an assignment of a list in a list",
    joined: "`+` of a list in a list",
    repeated: "`*` of a list in a list",
    compared: "`==` of a list in a list",
    sliced: "a slice of a list in a list",
    copied: "`.copy` of a list in a list",
    extended: "an assignment of a list in a list",
}


@pytest.mark.parametrize("plain", REFUSED, ids=lambda f: f.__name__)
def test_what_lists_have_and_rows_have_not_is_refused(plain):
    with pytest.raises(weft.KernelTypeError, match="help: ") as caught:
        weft.kernel(plain)(torch.zeros(3))
    assert REFUSED[plain].replace("`", "") in str(caught.value).replace("`", "")
