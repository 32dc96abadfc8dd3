# ruff: noqa: B007, B023, B905, C416, E731, E501, SIM, UP - as people write them
"""Programs of textbooks in device loops, as people write them: what they are in Python."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

import weft


class Pt(NamedTuple):
    x: float
    y: float


def slice_store(x, out):
    for b in range(x.shape[0]):
        a = [v for v in x[b]]
        a[1:3] = [7.0, 8.0]
        a[-2:] = [x[b, 0]]
        a[:1] = [1.0, 2.0, 3.0]
        k = int(x[b, 0] * 4)
        a[k:k] = a[:2]
        out[b] = sum(j * v for j, v in enumerate(a)) + 100 * len(a)


def slice_tuples(x, out):
    for b in range(x.shape[0]):
        a = [(v, j) for j, v in enumerate(x[b])]
        a[2:5] = a[:2][::-1]
        out[b] = sum(v * (k + p) for p, (v, k) in enumerate(a))


def slice_fixed(x, out):
    for b in range(x.shape[0]):
        a = [0.0] * 6
        a[0] = 1.0
        a[2:4] = (x[b, 0], x[b, 1])
        a[4:] = x[b, :2]
        out[b] = sum(j * v for j, v in enumerate(a)) + 100 * len(a)


def slice_other_len(x, out):
    for b in range(x.shape[0]):
        a = [0.0] * 6
        a[2:4] = []
        out[b] = len(a) + x[b, 0]


def rot(x, out):
    for b in range(x.shape[0]):
        a = list(x[b])
        for k in range(3):
            a[:] = a[2:] + a[:2]
        out[b] = a[0] + 2 * a[-1]


def ragged_targets(x, out):
    for b in range(x.shape[0]):
        s = 0.0
        for k, row in enumerate(((1, 2, 3), (4,), (5, 6))):
            for v in row:
                s += v * x[b, k]
            n = len(row)
            s = s * 0.5 + n
        out[b] = s


def monotone(x, out):
    for b in range(x.shape[0]):
        st = []
        s = 0.0
        for k, v in enumerate(x[b]):
            n = 1
            while st and st[-1][0] <= v:
                n += st.pop()[1]
            st.append((v, n))
            s += n
        out[b] = s


def choice_of_tuples(x, out):
    dirs = ((0, 1), (1, 0), (0, -1), (-1, 0))
    for b in range(x.shape[0]):
        p, q, d = 0, 0, dirs[0]
        for v in x[b]:
            d = dirs[1] if v > 0.5 else dirs[2]
            dx, dy = dirs[int(v * 4)]
            p, q = p + d[0] + dx, q + d[1] + dy
        out[b] = 10 * p + q


def split_words(x, out):
    for b in range(x.shape[0]):
        word, longest = [], []
        for v in x[b]:
            if v > 0.5:
                word.append(v)
            else:
                if len(word) > len(longest):
                    longest = word
                word = []
        if len(word) > len(longest):
            longest = word
        out[b] = len(longest) + sum(longest)


def two_stacks(x, out):
    for b in range(x.shape[0]):
        inbox, outbox = [], []
        s = 0.0
        for k, v in enumerate(x[b]):
            inbox.append(v)
            if k % 3 == 2:
                if not outbox:
                    while inbox:
                        outbox.append(inbox.pop())
                s = s * 0.5 + outbox.pop()
        out[b] = s + len(inbox) + 10 * len(outbox)


def radix(x, out):
    for b in range(x.shape[0]):
        a = [int(v * 63) for v in x[b]]
        for bit in range(6):
            zeros = [v for v in a if not (v >> bit) & 1]
            ones = [v for v in a if (v >> bit) & 1]
            a = zeros + ones
        out[b] = sum(k * v for k, v in enumerate(a))


def heat(x, out):
    for b in range(x.shape[0]):
        u = [v for v in x[b]]
        n = len(u)
        for _ in range(5):
            new = u[:]
            for k in range(1, n - 1):
                new[k] = u[k] + 0.25 * (u[k - 1] - 2 * u[k] + u[k + 1])
            u = new
        out[b] = u[2] + 2 * u[3]


def matpow(x, out):
    for b in range(x.shape[0]):
        m = [[1.0, x[b, 0]], [0.5, 0.0]]
        r = [[1.0, 0.0], [0.0, 1.0]]
        e = 5
        while e:
            if e % 2:
                r = [[sum(r[i][k] * m[k][j] for k in range(2)) for j in range(2)] for i in range(2)]
            m = [[sum(m[i][k] * m[k][j] for k in range(2)) for j in range(2)] for i in range(2)]
            e //= 2
        out[b] = r[0][0] + 2 * r[1][0]


def hull_area(x, out):
    for b in range(x.shape[0]):
        pts = [Pt(x[b, k], x[b, (k + 3) % 7]) for k in range(5)]
        pts.sort()
        lower = []
        for p in pts:
            while (
                len(lower) >= 2
                and (lower[-1].x - lower[-2].x) * (p.y - lower[-2].y)
                - (lower[-1].y - lower[-2].y) * (p.x - lower[-2].x)
                <= 0
            ):
                lower.pop()
            lower.append(p)
        out[b] = len(lower) + sum(p.x * p.y for p in lower)


def events(x, out):
    for b in range(x.shape[0]):
        q = [(x[b, 0], 0), (x[b, 1], 1), (x[b, 2], 2)]
        s, n = 0.0, 0
        while q and n < 8:
            k = min(range(len(q)), key=lambda j: q[j])
            t, kind = q.pop(k)
            s = s * 0.5 + t * (kind + 1)
            n += 1
            if kind != 2:
                q.append((t + x[b, 3] + 0.1, (kind + 1) % 3))
        out[b] = s + n


def beam(x, out):
    for b in range(x.shape[0]):
        beams = [(0.0, 0)]
        for t in range(4):
            grown = []
            for score, code in beams:
                for s in range(2):
                    grown.append(
                        (
                            score + (x[b, t] if s else 1 - x[b, t]) - 0.1 * abs(s - code % 2),
                            code * 2 + s,
                        )
                    )
            grown.sort(reverse=True)
            beams = grown[:3]
        out[b] = beams[0][0] + beams[0][1] + beams[1][1] * 0.01


def kmp(x, out):
    pat = (1, 0, 1)
    for b in range(x.shape[0]):
        fail = [0] * 3
        k = 0
        for i in range(1, 3):
            while k > 0 and pat[k] != pat[i]:
                k = fail[k - 1]
            if pat[k] == pat[i]:
                k += 1
            fail[i] = k
        k, hits = 0, []
        for i, v in enumerate(x[b]):
            bit = int(v > 0.5)
            while k > 0 and (k == 3 or pat[k] != bit):
                k = fail[k - 1]
            if pat[k] == bit:
                k += 1
            if k == 3:
                hits.append(i)
        out[b] = sum(hits) + 100 * len(hits)


def nelder(x, out):
    for b in range(x.shape[0]):
        f = lambda p: (p[0] - x[b, 0]) ** 2 + 2 * (p[1] - x[b, 1]) ** 2
        sx = [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)]
        for _ in range(12):
            sx = sorted(sx, key=f)
            cx, cy = (sx[0][0] + sx[1][0]) / 2, (sx[0][1] + sx[1][1]) / 2
            r = (2 * cx - sx[2][0], 2 * cy - sx[2][1])
            if f(r) < f(sx[1]):
                sx = [sx[0], sx[1], r]
            else:
                sx = [sx[0], sx[1], ((cx + sx[2][0]) / 2, (cy + sx[2][1]) / 2)]
        out[b] = sx[0][0] + 2 * sx[0][1]


def pagerank(x, out):
    links = ((1, 2), (2,), (0,), (0, 2))
    for b in range(x.shape[0]):
        rank = [0.25] * 4
        for _ in range(8):
            new = [0.15 / 4] * 4
            for u, outs in enumerate(links):
                for v in outs:
                    new[v] += 0.85 * rank[u] / len(outs)
            rank = new
        out[b] = rank[0] + 2 * rank[2] + x[b, 0]


def interval_merge(x, out):
    for b in range(x.shape[0]):
        iv = sorted((x[b, k], x[b, k] + 0.1) for k in range(5))
        merged = [iv[0]]
        for lo, hi in iv[1:]:
            if lo <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(hi, merged[-1][1]))
            else:
                merged.append((lo, hi))
        out[b] = len(merged) + sum(hi - lo for lo, hi in merged)


def memo_table(x, out):
    for b in range(x.shape[0]):
        memo = [-1] * 12
        memo[0] = memo[1] = 1
        stack = [11]
        while stack:
            n = stack[-1]
            if memo[n] >= 0:
                stack.pop()
            elif memo[n - 1] >= 0 and memo[n - 2] >= 0:
                memo[n] = memo[n - 1] + memo[n - 2]
                stack.pop()
            else:
                stack.append(n - 2)
                stack.append(n - 1)
        out[b] = memo[11]


def levenshtein_row(x, out):
    for b in range(x.shape[0]):
        n = x.shape[1]
        row = list(range(n + 1))
        for i in range(1, n + 1):
            prev, row[0] = row[0], i
            for j in range(1, n + 1):
                cost = 0 if (x[b, i - 1] > 0.5) == (x[b, j - 1] > 0.3) else 1
                prev, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, prev + cost)
        out[b] = row[n]


def heap(x, out):
    for b in range(x.shape[0]):
        h = []
        for v in x[b]:
            h.append(v)
            k = len(h) - 1
            while k > 0 and h[(k - 1) // 2] > h[k]:
                h[k], h[(k - 1) // 2] = h[(k - 1) // 2], h[k]
                k = (k - 1) // 2
        s = 0.0
        while h:
            top = h[0]
            last = h.pop()
            if h:
                h[0] = last
                k = 0
                while True:
                    c = 2 * k + 1
                    if c >= len(h):
                        break
                    if c + 1 < len(h) and h[c + 1] < h[c]:
                        c += 1
                    if h[k] <= h[c]:
                        break
                    h[k], h[c] = h[c], h[k]
                    k = c
            s = s * 0.5 + top
        out[b] = s


def union_find(x, out):
    for b in range(x.shape[0]):
        parent = list(range(7))

        def find(a):
            while parent[a] != a:
                parent[a] = parent[parent[a]]
                a = parent[a]
            return a

        for j in range(x.shape[1] - 1):
            if x[b, j] > 0.5:
                ra, rb = find(j), find((j * 3 + 1) % 7)
                if ra != rb:
                    parent[ra] = rb
        out[b] = sum(1 for k in range(7) if find(k) == k)


def rk4(x, out):
    for b in range(x.shape[0]):
        y, v, dt = x[b, 0], x[b, 1], 0.1

        def acc(p, q):
            return q, -p - 0.1 * q

        for _ in range(20):
            k1 = acc(y, v)
            k2 = acc(y + dt / 2 * k1[0], v + dt / 2 * k1[1])
            k3 = acc(y + dt / 2 * k2[0], v + dt / 2 * k2[1])
            k4 = acc(y + dt * k3[0], v + dt * k3[1])
            y, v = (
                p + dt / 6 * (a + 2 * c + 2 * d + e)
                for p, a, c, d, e in zip((y, v), k1, k2, k3, k4)
            )
        out[b] = y


def gauss(x, out):
    for b in range(x.shape[0]):
        n = 3
        a = [
            [x[b, (i * 3 + j) % 7] + (2.0 if i == j else 0.0) for j in range(n)] + [1.0 + i]
            for i in range(n)
        ]
        for c in range(n):
            p = max(range(c, n), key=lambda r: abs(a[r][c]))
            if p != c:
                for k in range(n + 1):
                    a[c][k], a[p][k] = a[p][k], a[c][k]
            for r in range(c + 1, n):
                f = a[r][c] / a[c][c]
                for k in range(c, n + 1):
                    a[r][k] -= f * a[c][k]
        s = [0.0] * n
        for i in range(n - 1, -1, -1):
            s[i] = (a[i][n] - sum(a[i][k] * s[k] for k in range(i + 1, n))) / a[i][i]
        out[b] = s[0] + 2 * s[1] + 3 * s[2]


def merge_sort(x, out):
    for b in range(x.shape[0]):
        a = list(x[b])
        width = 1
        n = len(a)
        while width < n:
            merged = []
            for lo in range(0, n, 2 * width):
                mid, hi = min(lo + width, n), min(lo + 2 * width, n)
                i, j = lo, mid
                while i < mid and j < hi:
                    if a[i] <= a[j]:
                        merged.append(a[i])
                        i += 1
                    else:
                        merged.append(a[j])
                        j += 1
                merged += a[i:mid] + a[j:hi]
            a = merged
            width *= 2
        out[b] = sum(k * v for k, v in enumerate(a))


def largest_rect(x, out):
    for b in range(x.shape[0]):
        stack = []
        best = 0.0
        n = x.shape[1]
        for i in range(n + 1):
            h = x[b, i] if i < n else 0.0
            while stack and x[b, stack[-1]] >= h:
                top = stack.pop()
                width = i if not stack else i - stack[-1] - 1
                best = max(best, x[b, top] * width)
            stack.append(i)
        out[b] = best


def viterbi_back(x, out):
    for b in range(x.shape[0]):
        n = x.shape[1]
        score = [0.0, -0.1]
        back = [[0] * 2 for _ in range(7)]
        for t in range(n):
            new = [0.0, 0.0]
            for s in range(2):
                best, arg = -1e9, 0
                for r in range(2):
                    v = score[r] - 0.3 * abs(r - s)
                    if v > best:
                        best, arg = v, r
                new[s] = best + (x[b, t] if s else 1 - x[b, t])
                back[t][s] = arg
            score = new
        s = 0 if score[0] >= score[1] else 1
        code = s
        for t in range(n - 1, 0, -1):
            s = back[t][s]
            code = code * 2 + s
        out[b] = code


def euler_walk(x, out):
    moves = {"n": (0, 1), "s": (0, -1)}
    for b in range(x.shape[0]):
        px, py = 0, 0
        for v in x[b]:
            dx, dy = moves["n"] if v > 0.5 else moves["s"]
            px, py = px + dx, py + dy + 1
        out[b] = px + py


def queens(x, out):
    for b in range(x.shape[0]):
        n = 5
        cols = [-1] * n
        row, found = 0, 0
        while row >= 0:
            cols[row] += 1
            while cols[row] < n and any(
                cols[r] == cols[row] or abs(cols[r] - cols[row]) == row - r for r in range(row)
            ):
                cols[row] += 1
            if cols[row] == n:
                cols[row] = -1
                row -= 1
            elif row == n - 1:
                found += 1
            else:
                row += 1
        out[b] = found


def permute(x, out):
    for b in range(x.shape[0]):
        a = [0, 1, 2, 3]
        best = 1e9
        while True:
            cost = sum(x[b, (p * 2 + k) % 7] for k, p in enumerate(a))
            best = min(best, cost)
            i = len(a) - 2
            while i >= 0 and a[i] > a[i + 1]:
                i -= 1
            if i < 0:
                break
            j = len(a) - 1
            while a[j] < a[i]:
                j -= 1
            a[i], a[j] = a[j], a[i]
            a[i + 1 :] = reversed(a[i + 1 :])
        out[b] = best


def flood(x, out):
    for b in range(x.shape[0]):
        g = [[x[b, (r * 3 + c) % 7] > 0.4 for c in range(4)] for r in range(4)]
        seen = [[False] * 4 for _ in range(4)]
        best = 0
        for r in range(4):
            for c in range(4):
                if g[r][c] and not seen[r][c]:
                    stack = [(r, c)]
                    seen[r][c] = True
                    size = 0
                    while stack:
                        y, z = stack.pop()
                        size += 1
                        for dy, dz in ((0, 1), (1, 0), (0, -1), (-1, 0)):
                            ny, nz = y + dy, z + dz
                            if 0 <= ny < 4 and 0 <= nz < 4 and g[ny][nz] and not seen[ny][nz]:
                                seen[ny][nz] = True
                                stack.append((ny, nz))
                    best = max(best, size)
        out[b] = best


PROGRAMS = (
    slice_store,
    slice_tuples,
    slice_fixed,
    slice_other_len,
    rot,
    ragged_targets,
    monotone,
    choice_of_tuples,
    split_words,
    two_stacks,
    radix,
    heat,
    matpow,
    hull_area,
    events,
    beam,
    kmp,
    nelder,
    pagerank,
    interval_merge,
    memo_table,
    levenshtein_row,
    heap,
    union_find,
    rk4,
    gauss,
    merge_sort,
    largest_rect,
    viterbi_back,
    euler_walk,
    queens,
    permute,
    flood,
)


@pytest.mark.parametrize("plain", PROGRAMS, ids=lambda f: f.__name__)
def test_programs_of_textbooks_are_what_they_are_in_python(plain):
    x = torch.rand(5, 7, dtype=torch.float64)
    expected, found = torch.zeros(5, dtype=torch.float64), torch.full((5,), -7.0).double()
    plain(x.numpy(), expected.numpy())
    weft.kernel(plain)(x, found)
    torch.testing.assert_close(found, expected)


def none_or_a_number(x):
    for i in range(3):
        found = None
        for j in range(3):
            if x[j] > 0:
                found = j
        x[i] = -1 if found is None else found


def strings(x):
    for i in range(3):
        mode = "b" if x[i] > 0.5 else "a"
        x[i] = mode == "a"


def a_slice_with_a_step(x):
    for i in range(3):
        a = [x[i], 1.0, 2.0]
        a[::2] = [1.0, 2.0]
        x[i] = a[0]


def an_unknown_list(x):
    for i in range(3):
        a = []
        while a and a[-1].x > 0:
            a.pop()
        x[i] = len(a)


REFUSED = {
    none_or_a_number: ("`found` is None here and a scalar (int) elsewhere",
                       "begin with a number that stands for none (-1, math.inf), and test for that"),
    strings: ("this may be one string or another",
              "strings are known when the kernel is compiled: use a number for each"),
    a_slice_with_a_step: ("a store into a slice of a list with a step",
                          "write a loop over its elements"),
    an_unknown_list: ("this must be a scalar, and is the method `x`", ""),
}  # fmt: skip


@pytest.mark.parametrize("plain", REFUSED, ids=lambda f: f.__name__)
def test_what_is_refused_says_what_to_write(plain):
    message, help = REFUSED[plain]
    with pytest.raises(weft.KernelTypeError) as caught:
        weft.kernel(plain)(torch.zeros(3))
    assert message in str(caught.value)
    assert f"help: {help}" in str(caught.value)
