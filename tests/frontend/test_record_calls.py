# ruff: noqa: B905, C405, C416, PIE800 - as people write them
"""Objects and dicts made of others, and what dicts and sets have, in a device loop."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

import weft


@dataclasses.dataclass
class Point:
    x: float
    y: float


@dataclasses.dataclass
class Copied(Point):
    def __copy__(self):
        return self


class Ray(NamedTuple):
    o: float
    d: float


def replaced(x, out):
    for i in range(out.shape[0]):
        p = Point(x[i] * 2, 1.0)
        q = dataclasses.replace(p, y=x[i] + 1)
        r = copy.copy(q)
        r.y = 5.0
        q.x = 7.0
        s = Ray(p.x, 2.0)._replace(d=3.0)
        o, d = s
        out[i] = p.x + q.x + 10 * q.y + 100 * r.y + o * d + r.x


def of_dicts(x, out):
    for i in range(out.shape[0]):
        d = {"a": x[i] * 2, "b": 2.0, "inner": {"c": 1.0}}
        e = d.copy()
        d["a"] = d["a"] + 1
        if x[i] > 0:
            d["b"] += 1
        d["inner"]["c"] = 4.0
        out[i] += e["a"] + e["b"]
        flat = {"p": d["a"], "q": d["b"]}
        out[i] += sum(flat.values()) + flat.get("q", 0.0) * flat.get("r", 10.0)
        for key in flat.keys():  # noqa: SIM118
            out[i] += flat[key]
        out[i] += d["inner"]["c"] + 10 * e["inner"]["c"]


def halved(d):
    d["a"] = d["a"] / 2


def given(x, out):
    for i in range(out.shape[0]):
        d = {"a": x[i] * 2}
        halved(d)
        out[i] = d["a"] + (10.0 if i in {1, 3} else 20.0) + (i not in {0, 1})


@pytest.mark.parametrize("plain", [replaced, given, of_dicts], ids=lambda f: f.__name__)
def test_as_in_python(plain: Callable[..., None]) -> None:
    x, out = torch.randn(5, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    expected = out.clone()
    plain(x, expected)
    for call in (weft.kernel(plain), weft.kernel(plain).interpret):
        found = out.clone()
        call(x, found)
        torch.testing.assert_close(found, expected)


def flat_dicts(x, out):
    for i in range(out.shape[0]):
        d = {"a": x[i] * 2, "b": 2.0}
        e = d.copy()
        d["a"] = d["a"] + 1
        if x[i] > 0:
            d["b"] += 1
        for _, value in e.items():
            out[i] += value
        out[i] += sum(d.values()) + d.get("b", 0.0) * d.get("r", 10.0)
        for key in d.keys():  # noqa: SIM118
            out[i] += d[key]


def test_methods_and_items_of_dicts() -> None:
    test_as_in_python(flat_dicts)


class Mode(enum.Enum):
    A = 1
    B = 2


THREE = 3


def keyed_by_numbers(x, out):
    for i in range(out.shape[0]):
        d = {0: x[i], 1: 2.0 * x[i], -2: 1.0}
        d[1] += 3.0
        for k in d:
            out[i] += k * d[k]
            d[k] = d[k] * 0.5
        if -2 in d and 5 not in d:
            out[i] += d.get(7, 0.5) + d.get(-2, 100.0) + len(d)
        e = {True: 1.0, 2.5: x[i], THREE: 0.25, "a": -1.0}
        out[i] += e[1] + 10 * e[2.5] + 100 * e[THREE] + e["a"]


PLACES = {(0, 1): 1.5, (1, 0): 2.0}


def keyed_by_tuples(x, out):
    for i in range(out.shape[0]):
        w = {(0, 0): 1.0, (0, 1): -2.0, (1, 0): x[i], (1, 1): 0.25}
        for (a, b), v in w.items():
            out[i] += (a + 2 * b + 1) * v
        for r in range(2):
            w[1, 0], w[0, 0] = w[0, 0] + r, w[(1, 0)] * 0.5
        out[i] += w[1, 0] + 3 * w[0, 0]
        for k in w:
            out[i] += w[k] * (k[0] + 2 * k[1])
            w[k] = w[k] + x[i] * (k == (0, 1)) + (k in ((1, 1), (1, 0)))
        for a, b in w:
            out[i] += w[a, b] * (a - b)
        twice = {k: 2.0 * w[k] + sum(k) + len(k) for k in w}
        out[i] += sum(twice[k] * k[0] for k in twice) + sum(PLACES[k] for k in PLACES)


def keyed_by_enums(x, out):
    for i in range(out.shape[0]):
        t = {Mode.A: x[i], Mode.B: -x[i]}
        if x[i] > 0:
            t[Mode.A] = 7.0
        out[i] = t[Mode.A] + 3 * t[Mode.B]


def comprehended(x, out):
    scale = {k: 0.5 * k for k in range(4)}
    for i in range(out.shape[0]):
        d = {k: scale[k] * x[i] for k in range(4) if k % 2}
        e = {n: x[j] for j, n in enumerate(("u", "v"))}
        for k, v in {a + b: a * b for a in (1, 2) for b in (2, 3)}.items():  # 4 twice
            out[i] += k * v
        f = {**d, 7: 1.0, **{1: 3.0}, **dict(zip((8, 9), (x[i], 2.0)))}
        g = dict(e, w=x[i])
        out[i] += d[1] + d[3] + e["u"] * e["v"] + f[1] + f[7] + sum(f.values()) + g["w"] + len(g)


SMALL = {2, 4}


def sets_of_constants(x, out):
    odd = {1, 3, 5}
    for i in range(out.shape[0]):
        n = int(4 * x[i] + 0.3)
        squares = {k * k for k in range(3)}
        out[i] = len(squares) + 10 * (n in squares) + 100 * (i in odd)
        if n not in {1, 2} | SMALL - {4} and i in set((0, 2, 4)) ^ frozenset({4}):
            out[i] += 1000
        if (n, i) in {(2, 0), (-1, 1), "a"} or "a" in {"b", "c"}:
            out[i] += 5
        for k in sorted(odd & {3, 5, 7}, reverse=True):
            out[i] = out[i] * 2 + {3: x[i], 5: 1.0}[k]


@pytest.mark.parametrize(
    "plain",
    [keyed_by_numbers, keyed_by_tuples, keyed_by_enums, comprehended, sets_of_constants],
    ids=lambda f: f.__name__,
)
def test_keys_of_dicts_are_constants_of_any_kind(plain: Callable[..., None]) -> None:
    test_as_in_python(plain)
    x = torch.tensor([0.5, -0.25, 1.5, -2.0, 0.75], dtype=torch.float64, requires_grad=True)

    def made(x):
        out = torch.zeros(5, dtype=torch.float64)
        weft.kernel(plain)(x, out)
        return out

    assert torch.autograd.gradcheck(made, x)


def runtime_key(x):
    for i in range(1):
        d = {0: 1.0, 1: 2.0}
        x[i] = d[i]


def runtime_store(x):
    for i in range(1):
        d = {0: 1.0, 1: 2.0}
        d[i] = 5.0
        x[i] = d[0]


def made_of_runtime(x):
    for i in range(1):
        d = {i: 1.0}
        x[i] = d[0]


def comprehension(x):
    for i in range(1):
        d = {k: k + 1.0 for k in range(i, 2)}
        x[i] = d[0]


def set_of_runtime(x):
    for i in range(1):
        x[i] = len({i, 1})


def set_comprehension(x):
    for i in range(1):
        x[i] = len({k for k in range(i + 1)})


def loop_over_a_set(x):
    for i in range(1):
        for k in {1, 2}:
            x[i] = k


def new_key(x):
    for i in range(1):
        d = {"a": 1.0}
        d["b"] = 2.0
        x[i] = d["a"]


def no_member(x):
    for i in range(1):
        x[i] = dataclasses.replace(Point(1.0, 2.0), z=1.0).x


def own_copy(x):
    for i in range(1):
        x[i] = copy.copy(Copied(1.0, 2.0)).x


def get_of_three(x):
    for i in range(1):
        d = {"a": 1.0}
        x[i] = d.get(i, 2.0)


REFUSED = {
    runtime_key: "a dict of a device loop is subscripted by a run-time value",
    runtime_store: "a dict of a device loop is subscripted by a run-time value",
    made_of_runtime: "a dict of a device loop has constants as keys, each once",
    comprehension: "a dict comprehension over what is known at run time only",
    set_of_runtime: "a set of a device loop has constants as members",
    set_comprehension: "a set comprehension over what is known at run time only",
    loop_over_a_set: "a loop over a set, whose order is open",
    new_key: "an item of a dict of 'a' is assigned by another key",
    no_member: "`z` is none of the members x, y",
    own_copy: "`copy.copy` of `Copied`, which makes its objects in a way of its own",
    get_of_three: "`.get` of a dict in a device loop takes other arguments",
}


@pytest.mark.parametrize("plain", REFUSED, ids=lambda f: f.__name__)
def test_what_cannot_be_is_refused(plain: Callable[..., None]) -> None:
    with pytest.raises(weft.CompileError, match="help: ") as caught:
        weft.kernel(plain)(torch.zeros(1))
    assert REFUSED[plain] in str(caught.value)


RATES = {"slow": 0.5, "fast": 2.0}
ORDERS = {1: 10, 3: 30}
ROWS = {"a": {"w": torch.arange(4.0)}, "b": {"w": torch.full((4,), 2.0)}}


def around(x, out, given):
    own = {"u": 1.0, "v": 2.0}
    for i in range(x.shape[0]):
        s = x[i] + 0
        for key, v in RATES.items():
            s = s * v if key == "fast" else s + v
        for n, (k, v) in enumerate(ORDERS.items()):
            s += (n + 1) * k * v
        for k in ORDERS:
            s += ORDERS[k] * k
        for row in ROWS.values():
            s += row["w"][i]
        s += sum(own.values()) + max(given.values()) + len(RATES.keys()) + sum(sorted(ORDERS))
        if i in ORDERS.keys():  # noqa: SIM118
            s += 100
        doubled = {k: 2 * v for k, v in ORDERS.items()}
        mine = RATES.copy()
        mine["slow"] = s
        out[i] = mine["slow"] + mine["fast"] + doubled[3] + ORDERS.get(7, 5) + ROWS["b"]["w"][i]


def test_methods_of_dicts_from_around_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = weft.kernel(around)

    def compare() -> None:
        outs = [torch.empty(4) for _ in range(3)]
        for call, out in zip((kernel, kernel.interpret, around), outs, strict=True):
            call(torch.arange(4.0), out, {"p": 1.0, "q": 5.0})
        torch.testing.assert_close(outs[0], outs[2])
        torch.testing.assert_close(outs[1], outs[2])

    compare()
    monkeypatch.setitem(RATES, "slow", 7.0)
    compare()
    monkeypatch.setitem(ORDERS, 2, 20)  # one more turn
    compare()
    monkeypatch.setitem(ROWS, "a", {"w": torch.ones(4)})
    monkeypatch.setitem(ROWS, "c", {"w": torch.full((4,), 9.0)})
    compare()
    monkeypatch.delitem(ROWS, "a")
    compare()
