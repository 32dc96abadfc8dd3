"""Lists that change places: names that hold one local array after another."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.conftest import adapter
from tests.cuda.emulator import emulated
from weft.tools.cross import compile_for


def edit_distance(x, out):
    for b in range(x.shape[0]):
        prev = [0] * 8
        cur = [0] * 8
        for j in range(8):
            prev[j] = j
        for i in range(1, x.shape[1] + 1):
            cur[0] = i
            for j in range(1, 8):
                same = x[b, i - 1] > 0.5 and j % 2 == 0
                cur[j] = min(prev[j] + 1, cur[j - 1] + 1, prev[j - 1] + (0 if same else 1))
            prev, cur = cur, prev
        out[b] = prev[7]


def knapsack(x, out):
    for b in range(x.shape[0]):
        dp = [0.0] * 11
        for i in range(x.shape[1]):
            new = dp[:]
            w = 1 + i % 4
            for c in range(w, 11):
                new[c] = max(dp[c], dp[c - w] + x[b, i])
            dp = new
        out[b] = dp[10]


def in_place_copies(x, out):
    for b in range(x.shape[0]):
        best = [x[b, 0], 0.0]
        for i in range(1, x.shape[1]):
            found = list(best)
            found[0] = x[b, i]
            found[1] = best[1] + 1.0
            if found[0] > best[0]:
                best = found.copy()
        out[b] = best[0] + 2 * best[1]


def warping(x, out):
    for b in range(x.shape[0]):
        prev = [1e3] * 7
        prev[0] = 0.0
        for i in range(x.shape[1]):
            cur = [1e3] * 7
            for j in range(6):
                cost = (x[b, i] - 0.25 * j) ** 2
                cur[j + 1] = cost + min(prev[j], prev[j + 1], cur[j])
            prev = cur
        out[b] = prev[6]


def viterbi(x, out):
    for b in range(x.shape[0]):
        score = [0.0] * 3
        for t in range(x.shape[1]):
            old = score
            score = [0.0] * 3
            for s in range(3):
                score[s] = max(old[r] * 0.9 - abs(r - s) for r in range(3)) + x[b, t] * (s - 1)
        out[b] = max(score)


def rotated(x, out):
    for b in range(x.shape[0]):
        a, c, d = [0.0] * 5, [1.0] * 5, [2.0] * 5
        for i in range(x.shape[1]):
            for j in range(1, 5):
                a[j] = c[j - 1] + d[j] * x[b, i]
            a, c, d = d, a, c
        out[b] = a[1] + 2 * c[2] + 3 * d[3]


def breadth_first(x, out):
    for b in range(x.shape[0]):
        frontier = [b]
        depth, total = 1, 0
        while frontier:
            found = []
            for v in frontier:
                total += v * depth
                if v < 20:
                    found.append(2 * v + 1)
                    found.append(2 * v + 2)
            frontier = found
            depth += 1
        out[b] = total


def of_tuples(x, out):
    for b in range(x.shape[0]):
        q = [(b, 1)]
        s = 0
        while q:
            r = []
            for v, d in q:
                s += v * d
                if d < 4:
                    r.append((v + 1, d + 1))
                    r.append((v + 2, d + 1))
            q = r
        out[b] = s


def pascal(x, out):
    for b in range(x.shape[0]):
        row = [1]
        for _ in range(5 + b):
            row = [1] + [row[j] + row[j + 1] for j in range(len(row) - 1)] + [1]
        out[b] = row[len(row) // 2]


def cells(x, out):
    for b in range(x.shape[0]):
        g = [[0] * 5 for _ in range(5)]
        for i in range(5):
            for j in range(5):
                if x[b, (i + j) % x.shape[1]] > 0.5:
                    g[i][j] = 1
        for _ in range(3):
            h = [[0] * 5 for _ in range(5)]
            for i in range(5):
                for j in range(5):
                    n = g[(i + 1) % 5][j] + g[i][(j + 1) % 5] + g[(i + 4) % 5][j] + g[i][j]
                    h[i][j] = 1 if n == 2 else 0
            g = h
        out[b] = sum(sum(r) for r in g)


def step(prev, v):
    cur = [0.0] * 6
    for j in range(5):
        cur[j + 1] = prev[j] * 0.5 + v
    return cur


def both(p, q, v):
    p[0] = v
    return q, p


def by_functions(x, out):
    for b in range(x.shape[0]):
        p, q = [0.0] * 6, [1.0] * 6
        for i in range(x.shape[1]):
            p = step(p, x[b, i])
            p, q = both(p, q, x[b, i])
        out[b] = p[5] + q[0] * 2


def of_run_time_length(x, out):
    for b in range(x.shape[0]):
        n = x.shape[1]
        prev = [0.0] * (n + 1)
        for i in range(n):
            cur = [0.0] * (n + 1)
            for j in range(n):
                cur[j + 1] = prev[j] * 0.5 + x[b, i]
            prev = cur
        out[b] = prev[n]


def of_torch(x, out):
    for b in range(x.shape[0]):
        prev, cur = torch.zeros(6), torch.zeros(6)
        for i in range(x.shape[1]):
            for j in range(5):
                cur[j + 1] = prev[j] * 0.5 + x[b, i]
            prev, cur = cur, prev
        out[b] = prev[5] + prev.sum()


PROGRAMS = (
    edit_distance, knapsack, in_place_copies, warping, viterbi, rotated, breadth_first, of_tuples,
    pascal, cells, by_functions, of_run_time_length, of_torch,
)  # fmt: skip
SMOOTH = (knapsack, warping, viterbi, rotated, by_functions, of_run_time_length)


@pytest.mark.parametrize("plain", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lists_that_change_places_are_what_they_are_in_python(plain, dtype):
    x = torch.rand(4, 7, dtype=dtype)
    if plain is of_torch:  # whose arrays are float32: all sums of these are exact, in any order
        x = (8 * x).round() / 8
    expected, found = torch.zeros(4, dtype=dtype), torch.full((4,), -1.0, dtype=dtype)
    plain(x, expected)
    weft.kernel(plain)(x, found)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("plain", SMOOTH, ids=lambda f: f.__name__)
def test_their_gradients_are_those_of_finite_differences(plain):
    kernel = weft.kernel(plain)

    def call(x):
        out = torch.zeros(2, dtype=torch.float64)
        kernel(x, out)
        return out

    assert torch.autograd.gradcheck(call, torch.rand(2, 5, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("plain", PROGRAMS, ids=lambda f: f.__name__)
def test_they_are_compiled_for_gpus(plain):
    x = torch.rand(4, 7)
    (loop,) = compile_for("sm_90", weft.kernel(plain), x, torch.zeros(4))
    assert ".visible .entry" in loop.ptx


@pytest.mark.parametrize("plain", PROGRAMS[::3], ids=lambda f: f.__name__)
def test_their_code_for_gpus_computes_the_same(plain):
    x = torch.rand(4, 7)
    expected, found = torch.zeros(4), torch.full((4,), -1.0)
    plain(x, expected)
    emulated(weft.kernel(plain))(x, found)
    torch.testing.assert_close(found, expected)


@pytest.mark.webgpu
@pytest.mark.parametrize("plain", PROGRAMS, ids=lambda f: f.__name__)
def test_their_shaders_compute_the_same(plain):
    adapter()
    x = torch.rand(4, 7)
    expected, found = torch.zeros(4), torch.full((4,), -1.0)
    plain(x, expected)
    weft.kernel(plain).on("webgpu")(x, found)
    torch.testing.assert_close(found, expected)


# --- what copies would change the meaning of ------------------------------------------------------
def changed_alias(x):
    for i in range(3):
        a, b = [0.0] * 4, [1.0] * 4
        for j in range(4):
            a = b
            b[j] = x[i] + a[0]
        x[i] = a[1]


def held_by_a_tuple(x):
    for i in range(3):
        a, b = [0.0] * 4, [1.0] * 4
        for j in range(4):
            a, b = b, a
            a[j] = x[i]
            both = (a, b)
            x[i] = both[0][0]


def changed_by_a_function(x):
    for i in range(3):
        a, b = [0.0] * 4, [1.0] * 4
        for j in range(4):
            a = b
            push(b, j)
        x[i] = a[1]


def push(a, k):
    a[k] += 1.0


def caller_of_exchanged(x):
    for i in range(3):
        a, b = [0.0] * 4, [1.0] * 4
        exchanged(a, b)
        x[i] = a[1]


def exchanged(a, b):
    for k in range(3):
        a[k] = 2.0
        a, b = b, a


def kept_row(x):
    for i in range(3):
        t = [[0.0] * 2 for _ in range(2)]
        row = t[0]
        for k in range(2):
            u = [[x[i]] * 2 for _ in range(2)]
            u[0][k] = 1.0
            t = u
        x[i] = row[1]


def looped_over(x):
    for i in range(3):
        a = [1.0, x[i]]
        for v in a:
            b = [v, 2.0]
            b[1] = v
            a = b
        x[i] = a[0]


def other_sizes(x):
    for i in range(3):
        t = [[0.0] * 2 for _ in range(2)]
        for k in range(2):
            t[0][k] = 1.0
            t = [[0.0] * 3 for _ in range(2)]
        x[i] = t[0][0]


def lists_of_run_time(x):
    for i in range(3):
        t = [[0.0] * (x.shape[0] + 1) for _ in range(x.shape[0])]
        x[i] = t[0][0]


def list_of_complex_numbers(x):
    for i in range(3):
        a = []
        for k in range(x.shape[0]):
            a.append(weft.math.exp(1j * x[k]))
        x[i] = abs(a[0])


def either_range(x):
    for i in range(3):
        s = 0.0
        for k in range(3) if x[i] > 0 else range(2, -1, -1):
            s = s * 0.5 + x[k]
        x[i] = s


REFUSED = {
    changed_alias: ("`b` and `a` may be one list, which is changed here by the name `b`",
                    "make a copy where one gets the other: a = b[:]"),
    held_by_a_tuple: ("`both` holds a list whose name is assigned another one",
                      "put a copy of the list into it: a[:]"),
    changed_by_a_function: ("`b` and `a` may be one list, which is changed here by the name `b`",
                            "make a copy where one gets the other: a = b[:]"),
    caller_of_exchanged: ("`a` and the caller's list may be one list, which is changed here by the "
                          "name `a`", "begin with a copy: a = a[:]"),
    kept_row: ("`row` is a row of a list whose name has been assigned another one",
               "keep a copy of the row: row = ...[:]"),
    looped_over: ("a loop over `a` assigns that name", "loop over a copy: a[:]"),
    other_sizes: ("`t` may be a local array of 2 dimensions, or another one", ""),
    list_of_complex_numbers: (
        "a list of complex numbers whose length is known at run time",
        "make an array with room for them, a = weft.zeros(64, weft.c64), and count them",
    ),
    either_range: ("this may be a range, or another one",
                   "loop over one, and choose the number: `k = n if up else m - 1 - n`"),
    lists_of_run_time: ("a list of lists whose length is known at run time",
                        "give it a constant one that is large enough, "
                        "[[0.0] * 64 for _ in range(64)], or make a tensor in the host part"),
}  # fmt: skip


@pytest.mark.parametrize("plain", REFUSED, ids=lambda f: f.__name__)
def test_what_would_differ_is_refused_by_name(plain):
    message, help = REFUSED[plain]
    with pytest.raises(weft.KernelTypeError) as caught:
        weft.kernel(plain)(torch.zeros(3))
    assert message in str(caught.value)
    assert f"help: {help}" in str(caught.value)


def test_a_list_that_outgrows_its_room_is_an_error():
    @weft.kernel
    def long(x):
        for i in range(x.shape[0]):
            a = [0.0] * x.shape[0]
            for _ in range(2):
                a = a[:]
            x[i] = len(a)

    long(x := torch.zeros(64))
    assert x.tolist() == [64.0] * 64
    with pytest.raises(weft.KernelAssertionError, match="there is room for 64 elements"):
        long(torch.zeros(65))
