"""What researchers write out of habit, by what they would miss most: rows as values, loops in
order, local buffers, generators, functions of other libraries, lists of tensors, places of
extremes, other forms of Python. Each function is compiled, in debug mode too, and interpreted: all
give what it gives undecorated, also in a graph of ``torch.compile``. Gradients are differences.
"""

# ruff: noqa: B023, B905 -- functions that are called where they are made; zip as people write it
from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft


def row_sum(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        out[i] = x[i].sum() + x[i, :].mean() + x[i, ...].norm()
    return out


def row_store(x, y):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i, :] = x[i] * 2 + y[i]
    return out


def row_dot(x, y, w):
    out = x.new_empty(x.shape[0], 4)
    for i in range(x.shape[0]):
        out[i, 0] = torch.dot(x[i], y[i])
        out[i, 1:] = x[i] @ w
    return out


def row_max(x):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        out[i] = max(x[i]) - min(x[i]) + x[i].max()
    return out


def row_for(x):
    out = x.new_zeros(x.shape[0])
    for i in range(x.shape[0]):
        s = 0.0
        for v in x[i]:
            s += v * v
        out[i] = s
    return out


def row_enum(x, y):
    out = x.new_zeros(x.shape[0])
    for i in range(x.shape[0]):
        s = 0.0
        for j, (p, q) in enumerate(zip(x[i], y[i])):
            s += p * q * j
        out[i] = s / len(x[i])
    return out


def row_cols(x):
    out = x.new_empty(x.shape[1])
    for j in range(x.shape[1]):
        out[j] = x[:, j].sum() + x[::2, j].max()
    return out


def row_step(x):
    out = x.new_empty(x.shape[0], 4)
    for i in range(x.shape[0]):
        out[i] = x[i, ::2] - x[i, 1:5]
    return out


def row_softmax(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = torch.softmax(x[i], dim=0)
    return out


def row_softmax2(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        e = torch.exp(x[i] - x[i].max())
        out[i] = e / e.sum()
    return out


def row_layernorm(x, v):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        row = x[i]
        mu = row.mean()
        var = ((row - mu) ** 2).mean()
        out[i] = (row - mu) / torch.sqrt(var + 1e-05) * v
    return out


def row_relu(x, v):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = F.relu(x[i] + v) + F.silu(x[i])
    return out


@weft.func
def _rowf(r, s):
    return (r * s).sum()


def row_func(x, y):
    out = x.new_empty(x.shape[0])
    for i in range(x.shape[0]):
        out[i] = _rowf(x[i], y[i])
    return out


def _centered(r):
    return r - r.mean()


def row_func2(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = _centered(x[i])
    return out


def row_pair(x):
    out = x.new_empty(x.shape[0], x.shape[0])
    for i in range(x.shape[0]):
        for j in range(x.shape[0]):
            out[i, j] = ((x[i] - x[j]) ** 2).sum()
    return out


def row_cdist(x, y):
    out = x.new_empty(5, 5)
    for i in range(x.shape[0]):
        for j in range(y.shape[0]):
            d = x[i] - y[j]
            out[i, j] = torch.sqrt(d @ d)
    return out


def row_lse(x):
    out = x.new_empty(5)
    for i in range(5):
        m = x[i].max()
        out[i] = m + torch.log(torch.exp(x[i] - m).sum()) + torch.logsumexp(x[i], 0)
    return out


def row_gather(x, m):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[m[i]]
    return out


def row_argsort(x):
    out = torch.empty(5, dtype=torch.int64)
    for i in range(5):
        out[i] = x[i].argmax()
    return out


def row_ce(x, m):
    s = 0.0
    for i in range(x.shape[0]):
        s += -torch.log_softmax(x[i], 0)[m[i]]
    return s / x.shape[0]


def row_ce2(x, m):
    s = 0.0
    for i in range(x.shape[0]):
        lp = torch.log_softmax(x[i], 0)
        s -= lp[m[i]]
    return s / x.shape[0]


def row_cumsum(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for j, v in enumerate(x[i]):
            s += v
            out[i, j] = s
    return out


def row_outer(u, v):
    out = u.new_empty(5, 7)
    for i in range(5):
        out[i] = u[i] * v
    return out


def row_var(x):
    out = x.new_empty(5)
    for i in range(5):
        out[i] = x[i].var() + x[i].std(unbiased=False)
    return out


def row_clamp(x):
    out = torch.empty_like(x)
    for i in range(5):
        out[i] = x[i].clamp(-0.5, 0.5) + torch.clamp(x[i], min=0.1)
    return out


def row_where(x):
    out = torch.empty_like(x)
    for i in range(5):
        out[i] = torch.where(x[i] > 0, x[i], 0.1 * x[i])
    return out


def row_any(x):
    out = x.new_empty(5)
    for i in range(5):
        out[i] = 1.0 if (x[i] > 1.5).any() else 2.0
    return out


def row_inplace(x, y):
    out = x.clone()
    for i in range(5):
        out[i] += y[i]
        out[i] *= 2
        out[i, 1:3] = 0.5
    return out


def row_3d(z):
    out = z.new_empty(6, 5)
    for i in range(6):
        for j in range(5):
            out[i, j] = z[i, j].sum() + z[i, :, 0].mean() + z[i].max()
    return out


def row_matvec(z):
    out = z.new_empty(6, 5)
    for i in range(6):
        out[i] = z[i] @ z[i, 0]
    return out


def in_order(x):
    out = x.new_empty(7)
    s = 0.0
    weft.loop_config(serialize=True)
    for j in range(7):
        s = 0.9 * s + x[0, j]
        out[j] = s
    return out


def in_order2(x):
    out = x.new_zeros(7)
    s = 0.0
    weft.loop_config(serialize=True)
    for j in range(7):
        s += x[0, j]
        if s > 1.0:
            break
        out[j] = s
    return (out, s)


def in_order3(x):
    h = torch.zeros_like(x)
    for t in weft.serial(range(1, 5)):
        for j in range(7):
            h[t, j] = torch.tanh(h[t - 1, j] + x[t, j])
    return h


def in_order_two(x):
    a, b = (1.0, 0.0)
    weft.loop_config(serialize=True)
    for i in range(5):
        a, b = (a * 0.5 + x[i, 0], a * b + x[i, 1])
    return (a, b)


def buf1(x):
    out = x.new_empty(5)
    for i in range(5):
        b = [0.0] * 6
        for j in range(7):
            b[j % 6] += x[i, j]
        out[i] = b[0] * b[1] - b[5]
    return out


def buf2(x):
    out = x.new_empty(5)
    for i in range(5):
        b = torch.zeros(6)
        for j in range(6):
            b[j] = x[i, j] * j
        out[i] = b.sum() + b[2]
    return out


def buf3(x):
    out = x.new_empty(5)
    for i in range(5):
        b = [x[i, j] * 2 for j in range(7)]
        c = [v * v for v in b]
        out[i] = sum(c) + b[3]
    return out


def buf4(x, n):
    out = x.new_empty(5)
    for i in range(5):
        b = weft.zeros(n, weft.f64, most=8)
        for j in range(n):
            b[j] = x[i, j]
        for j in range(1, n):
            b[j] += b[j - 1]
        out[i] = b[n - 1]
    return out


def buf5(x):
    out = x.new_empty(5)
    for i in range(5):
        s = []
        for j in range(7):
            if x[i, j] > 0:
                s.append(x[i, j])
        t = 0.0
        while s:
            t = t * 0.5 + s.pop()
        out[i] = t
    return out


def buf7(x):
    out = x.new_empty(5)
    for i in range(5):
        m = torch.zeros(3, 3, dtype=x.dtype)
        for j in range(3):
            m[j, j] = x[i, j]
        m[0, 1] = x[i, 4]
        out[i] = (m @ m)[0, 1]
    return out


def buf9(x):
    out = x.new_empty(5)
    for i in range(5):
        b = torch.empty(7)
        b[:] = x[i]
        b[1:] = x[i, :-1] * 0.5
        out[i] = b.norm()
    return out


def gen1(x):
    out = x.new_empty(5)
    for i in range(5):
        out[i] = (
            sum(x[i, j] * j for j in range(7))
            + max(abs(v) for v in x[i])
            - min(x[i, j] for j in range(3))
        )
    return out


def gen2(x):
    out = x.new_empty(5)
    for i in range(5):
        out[i] = 1.0 if any(v > 1 for v in x[i]) else 2.0 if all(v < 0.9 for v in x[i]) else 3.0
    return out


def gen3(x):
    out = x.new_empty(5)
    for i in range(5):
        out[i] = sum(1 for v in x[i] if v > 0) + sum([x[i, j] for j in range(3)])
    return out


def fun_np(x):
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            out[i, j] = (
                np.exp(x[i, j]) * np.sin(x[i, j])
                + np.tanh(x[i, j])
                + np.maximum(x[i, j], 0.2)
                + np.sqrt(abs(x[i, j]) + 1)
                + np.pi
            )
    return out


def fun_np2(x):
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            out[i, j] = np.float32(0.5) * x[i, j] if not np.isnan(x[i, j]) else 0.0
    return out


def fun_rev(x):
    out = x.new_empty(5)
    for i in range(5):
        s = 0.0
        for j in reversed(range(7)):
            s = s * 0.5 + x[i, j]
        lo, mid, hi = sorted((x[i, 0], x[i, 1], x[i, 2]))
        out[i] = s + lo * 2 + mid * 3 - hi
    return out


def fun_math(x):
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            v = abs(x[i, j]) + 0.3
            out[i, j] = (
                math.lgamma(v)
                + math.log1p(v)
                + math.hypot(v, 2)
                + math.erf(v)
                + math.atan2(v, 2.0)
                + math.copysign(v, -1)
            )
    return out


def fun_math2(m):
    out = torch.empty(5)
    for i in range(5):
        out[i] = (
            math.gcd(int(m[i]), 12)
            + math.comb(5, 2)
            + math.isclose(1.0, 1.0 + 1e-12)
            + math.factorial(4)
        )
    return out


def fun_torch(x, y):
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            p, q = (x[i, j], y[i, j])
            out[i, j] = (
                torch.logaddexp(p, q)
                + torch.lgamma(abs(p) + 0.5)
                + torch.max(p, q)
                + torch.finfo(torch.float32).eps
                + torch.digamma(abs(q) + 1)
                + torch.special.expit(p)
                + torch.xlogy(abs(p), abs(q) + 1)
            )
    return out


def fun_F(x):
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            v = x[i, j]
            out[i, j] = (
                F.gelu(v)
                + F.silu(v)
                + F.softplus(v)
                + F.elu(v)
                + F.leaky_relu(v, 0.1)
                + F.mish(v)
                + F.hardtanh(v)
                + F.logsigmoid(v)
            )
    return out


_g = functools.partial(torch.clamp, min=0.0)


def _poly(v, a, b=2.0):
    return a * v * v + b


_p3 = functools.partial(_poly, b=3.0)


class _Call:
    def __init__(self, s):
        self.s = s

    def __call__(self, v):
        return v * self.s


_call = _Call(1.5)


def fun_partial(x):
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            out[i, j] = _g(x[i, j]) + _p3(x[i, j], 0.5) + _call(x[i, j])
    return out


def fun_finfo(x):
    out = torch.empty_like(x)
    for i in range(5):
        best = torch.finfo(x.dtype).min
        for j in range(7):
            best = max(best, x[i, j])
        out[i, :] = best + torch.iinfo(torch.int8).max + np.finfo(np.float32).eps
    return out


def fun_meth(x):
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            v = x[i, j]
            out[i, j] = (
                v.exp()
                + v.abs().sqrt()
                + v.sigmoid() * v.tanh()
                + v.pow(2)
                + v.clamp(min=0)
                + v.square()
            )
    return out


def list2(x, y, m):
    xs = [x, y]
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            out[i, j] = xs[m[i] % 2][i, j] + sum(t[i, j] for t in xs)
    return out


def fstr(x):
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            assert x[i, j] < 100, f"x[{i},{j}] = {x[i, j]:.3f}"
            out[i, j] = x[i, j]
    return out


def argmax1(v):
    best, at = (-math.inf, -1)
    for i in range(v.shape[0]):
        if v[i] > best:
            best = v[i]
            at = i
    return (best, at)


def flag1(v):
    found = False
    for i in range(v.shape[0]):
        if v[i] > 0.5:
            found = True
    return found


def count1(v):
    n = 0
    for i in range(v.shape[0]):
        if v[i] > 0.0:
            n += 1
    return n


def cplx(v):
    out = torch.empty(7, dtype=v.dtype)
    for i in range(7):
        z = complex(v[i], 1.0)
        out[i] = abs(z * z) + (z * 1j).real
    return out


def inner_def(x):
    out = torch.empty_like(x)
    for i in range(5):

        def f(v):
            return v * i + 1

        for j in range(7):
            out[i, j] = f(x[i, j])
    return out


def match1(x):
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            match j % 3:
                case 0:
                    out[i, j] = x[i, j]
                case 1:
                    out[i, j] = -x[i, j]
                case _:
                    out[i, j] = x[i, j] ** 2
    return out


def forelse(x):
    out = x.new_empty(5)
    for i in range(5):
        for j in range(7):
            if x[i, j] > 1.2:
                out[i] = x[i, j] * 2
                break
        else:
            out[i] = x[i, 0]
    return out


def star(x):
    out = x.new_empty(5)
    for i in range(5):
        a, *rest = (x[i, 0], x[i, 1], x[i, 2])
        *init, b = rest
        out[i] = a * rest[1] + b + len(init)
    return out


def _early(x, i):
    for j in range(x.shape[1]):
        for k in range(j):
            if x[i, j] * x[i, k] > 0.5:
                return x[i, j] + k
        if x[i, j] < -1:
            return -x[i, j]
    return x[i, 0]


def early(x):
    out = x.new_empty(5)
    for i in range(5):
        out[i] = _early(x, i)
    return out


class _P(NamedTuple):
    a: float
    b: float


@dataclass
class _D:
    a: float
    b: float

    def s(self):
        return self.a * self.b


def nt(x):
    out = x.new_empty(5)
    for i in range(5):
        p = _P(x[i, 0], x[i, 1])
        d = _D(x[i, 2], p.a)
        e = {"k": x[i, 3], "l": d.s()}
        out[i] = p.a * p.b + e["k"] * e["l"]
    return out


def optional(x, none):
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            out[i, j] = x[i, j] if none is None else x[i, j] + none[j]
    return out


def _rec(v, n):
    return v if n == 0 else v * _rec(v * 0.5, n - 1) + n


def rec(x):
    out = x.new_empty(5)
    for i in range(5):
        out[i] = _rec(x[i, 0], 4)
    return out


def walrus(x):
    out = x.new_empty(5)
    for i in range(5):
        if (s := x[i].sum()) > 0:
            out[i] = s
        else:
            out[i] = -2 * s
    return out


def tern_chain(x):
    out = torch.empty_like(x)
    for i in range(5):
        for j in range(7):
            v = x[i, j]
            out[i, j] = v if -1 < v < 1 else 1.0 if v >= 1 else -1.0
    return out


def while1(x):
    out = x.new_empty(5)
    for i in range(5):
        v = abs(x[i, 0]) + 1.0
        n = 0
        while v < 100.0:
            v = v * v + 0.5
            n += 1
            if n > 10:
                break
        out[i] = n + x[i, 1]
    return out


FUNCTIONS = [
    function for name, function in list(globals().items())
    if inspect.isfunction(function) and function.__module__ == __name__ and name[0] != "_"
]  # fmt: skip

NARROW = ("buf2", "buf9")  # their buffers are of f32: differences say nothing
WHOLE = ("row_argsort", "row_any", "gen2", "fun_math2", "flag1", "count1")  # without a derivative


def _arguments(function: Callable[..., Any], dtype: torch.dtype) -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    shapes = {"x": (5, 7), "y": (5, 7), "w": (7, 3), "v": (7,), "u": (5,), "z": (6, 5, 4)}
    others = {"m": torch.randint(0, 5, (5,), generator=generator), "n": 5, "none": None}
    return [torch.randn(shapes[name], dtype=torch.float64, generator=generator).to(dtype)
            if name in shapes else others[name]
            for name in inspect.signature(function).parameters]  # fmt: skip


def _results(found: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(v) for v in (found if isinstance(found, tuple) else (found,))]


def _alike(found: Any, expected: Any, dtype: torch.dtype) -> None:
    off = 2e-4 if dtype == torch.float32 else 1e-9
    for a, b in zip(_results(found), _results(expected), strict=True):
        torch.testing.assert_close(a.double(), b.double(), rtol=off, atol=off)


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # NumPy, of plain Python
@pytest.mark.sampled(6)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_it_gives_what_python_gives(function: Callable[..., Any]) -> None:
    kernel = weft.kernel(function)
    for dtype in (torch.float32, torch.float64):
        args = _arguments(function, dtype)
        expected = function(*args)
        for call in (kernel, weft.kernel(debug=True)(function), kernel.interpret):
            _alike(call(*args), expected, torch.float32 if function.__name__ in NARROW else dtype)
    torch._dynamo.reset()
    graph = torch.compile(lambda *args: kernel(*args), fullgraph=True, backend="aot_eager")
    _alike(graph(*args), expected, torch.float32 if function.__name__ in NARROW else dtype)


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # NumPy, of plain Python
@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "function", [f for f in FUNCTIONS if f.__name__ not in NARROW + WHOLE], ids=lambda f: f.__name__
)
def test_gradients_are_differences_of_the_python(function: Callable[..., Any]) -> None:
    args = _arguments(function, torch.float64)
    places = [
        k for k, a in enumerate(args) if isinstance(a, torch.Tensor) and a.is_floating_point()
    ]

    def total(call: Callable[..., Any], given: list[Any]) -> torch.Tensor:
        floats = [r.double() for r in _results(call(*given)) if r.is_floating_point()]
        return sum(((k + 1) * r * torch.arange(1, r.numel() + 1).reshape(r.shape).cos()).sum()
                   for k, r in enumerate(floats))  # fmt: skip

    directions = [torch.randn_like(args[k]) for k in places]

    def moved(step: float) -> float:
        given = list(args)
        for k, direction in zip(places, directions, strict=True):
            given[k] = given[k] + step * direction
        return float(total(function, given))

    leaves = [a.clone().requires_grad_() if k in places else a for k, a in enumerate(args)]
    wanted = [leaves[k] for k in places]
    found = torch.autograd.grad(total(weft.kernel(function), leaves), wanted, allow_unused=True)
    slope = sum(
        float((g * d).sum()) for g, d in zip(found, directions, strict=True) if g is not None
    )
    difference = (moved(1e-6) - moved(-1e-6)) / 2e-6
    assert abs(slope - difference) <= 1e-5 * (1 + abs(difference))
