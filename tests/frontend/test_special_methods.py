"""What the classes of dataclasses and named tuples define, in device loops: against the undecorated
Python."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

import weft


class Pair(NamedTuple):
    a: Any
    b: Any

    def __add__(self, other: Any) -> Any:
        return Pair(self.a + other.a, self.b + other.b)

    def __mul__(self, factor: Any) -> Any:
        return Pair(self.a * factor, self.b * factor)

    def __len__(self) -> int:
        return 7


@dataclasses.dataclass
class Number:
    re: Any
    im: Any
    unit: ClassVar[float] = 4.0

    def __add__(self, other: Any) -> Any:
        return Number(self.re + other.re, self.im + other.im)

    def __mul__(self, other: Any) -> Any:
        return Number(
            self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
        )

    def __rmul__(self, factor: Any) -> Any:
        return Number(self.re * factor, self.im * factor)

    def __iadd__(self, other: Any) -> Any:
        return Number(self.re + 10 * other.re, self.im)

    def __neg__(self) -> Any:
        return Number(-self.re, -self.im * 3)

    def __abs__(self) -> Any:
        return torch.sqrt(self.re * self.re + self.im * self.im)

    def __getitem__(self, k: int) -> Any:
        return self.re if k == 0 else self.im * 2

    def __len__(self) -> int:
        return 5

    def __call__(self, v: Any) -> Any:
        return self.re * v

    def __eq__(self, other: object) -> bool:
        return self.re == other.re  # type: ignore[attr-defined]

    def __lt__(self, other: Any) -> bool:
        return self.re < other.re

    def __contains__(self, v: Any) -> bool:
        return bool(v > self.re)

    @property
    def square(self) -> Any:
        return self.re * self.re + self.im * self.im


@dataclasses.dataclass
class Falsy:
    a: Any
    note: float = dataclasses.field(default=0.0, compare=False)

    def __bool__(self) -> bool:
        return bool(self.a < 0)


@dataclasses.dataclass
class Scaled:
    x: Any

    def by(self, k: float) -> Any:
        factor = k
        return Scaled(self.x * factor)


def defined(x: torch.Tensor, given: Number) -> torch.Tensor:
    out = torch.empty(20, x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        s = Pair(0.0, 0.0)
        for j in range(3):
            s = s + Pair(x[i], j * 1.0)
        out[0, i] = s[0]
        out[1, i] = s.b
        out[2, i] = (s * 2)[0] + len(s)
        p, q = Number(x[i], 1.0), Number(2.0, x[i])
        r = p * q + p
        out[3, i] = r.re
        out[4, i] = r.im
        out[5, i] = (2.5 * p).im + (-p).im
        out[6, i] = abs(q)
        out[7, i] = p[0] + p[1]
        out[8, i] = len(p)
        out[9, i] = p(3.0)
        out[10, i] = 1.0 if p == Number(x[i], 9.0) else 0.0
        out[11, i] = 1.0 if p != Number(x[i], 9.0) else 0.0
        out[12, i] = (1.0 if p < q else 0.0) + (2.0 if p > q else 0.0)
        out[13, i] = p.square + p.unit
        out[14, i] = (1.0 if Falsy(x[i]) else 0.0) + (2.0 if not Falsy(x[i]) else 0.0)
        out[15, i] = 1.0 if Falsy(x[i], 1.0) == Falsy(x[i], 2.0) else 0.0
        r += p
        out[16, i] = r.re
        out[17, i] = 1.0 if 0.5 in p else 0.0
        out[18, i] = (given * p).re + (p * given).im
        out[19, i] = 1.0 if given == p else 0.0
    return out


def test_special_methods_are_pythons() -> None:
    x = torch.tensor([0.25, -1.5, 0.7, 2.0], dtype=torch.float64, requires_grad=True)
    given = Number(0.25, 3.0)
    expected, found = defined(x, given), weft.kernel(defined)(x, given)
    torch.testing.assert_close(found, expected)
    one = torch.randn_like(found)
    for a, b in zip(
        torch.autograd.grad(found, x, one), torch.autograd.grad(expected, x, one), strict=True
    ):
        torch.testing.assert_close(a, b)


def chained(x: torch.Tensor, y: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        y[i] = Scaled(x[i]).by(3).by(0.5).by(x[i]).x


def test_calls_that_begin_at_one_place_have_variables_of_their_own() -> None:
    """``by`` is called with an int first: an element of 8 bits times that is one, and wraps."""
    x, y = torch.tensor([3, 100], dtype=torch.int8), torch.zeros(2, 2)
    chained(x, y[0])
    weft.kernel(chained)(x, y[1])
    assert y[0].tolist() == y[1].tolist() == [13.5, 2200.0]


def descending(x: torch.Tensor, flag: bool) -> torch.Tensor:
    out = torch.empty(3)
    for i in range(1):
        a, b, c = sorted((x[i], 0.25, 1.0), reverse=flag)
        out[0], out[1], out[2] = a, b, c
    return out


@pytest.mark.parametrize("flag", [False, True])
def test_sorted_is_reversed_by_a_flag_of_run_time(flag: bool) -> None:
    x = torch.rand(1)
    assert weft.kernel(descending)(x, flag).tolist() == descending(x, flag).tolist()


@dataclasses.dataclass
class Doubling:
    x: Any

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value * 2)


@dataclasses.dataclass(eq=False)
class Identical:
    x: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any


REFUSED = {
    "out[i] = Doubling(x[i]).x": "`Doubling` cannot be called in a device loop: it makes an object",
    "out[i] = 1.0 if Identical(x[i]) == Identical(x[i]) else 0.0": "`Identical` has no __eq__",
    "f = Frozen(x[i]); f.x = 1.0": "a member of `Frozen` cannot be assigned",
    "f = Pair(x[i], 1.0); f.a = 1.0": "a member of `Pair` cannot be assigned",
    "f = Scaled(x[i]) + 1": "this must be a scalar, and is a struct, Scaled(x)",
    "d = {'a': 1.0}; out[i] = d.pop('a')": "a struct, dict(a) has no attribute `pop`",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_not_pythons_is_refused(line: str, tmp_path: Any) -> None:
    path = tmp_path / "written.py"
    path.write_text(f"def f(x, out):\n    for i in range(x.shape[0]):\n        {line}\n")
    names = dict(globals())
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(weft.KernelTypeError) as caught:
        weft.kernel(names["f"])(torch.ones(3), torch.ones(3))
    assert REFUSED[line] in str(caught.value)


@dataclasses.dataclass
class Sum:
    x: Any

    def __iadd__(self, v: Any) -> Any:
        self.x += v
        return self

    def __mul__(self, factor: Any) -> Any:
        return Sum(self.x * factor)


@dataclasses.dataclass
class Held:
    sum: Sum


def halved(x, out):
    for i in range(x.shape[0]):
        s, h = Sum(x[i] * 1.0), Held(Sum(0.0))
        for j in range(x.shape[0]):
            s += x[j]
            h.sum += s.x
            if s.x > 0.5:
                s = s * 0.5
                h = Held(h.sum * 0.25)
        out[i] = s.x + 10 * h.sum.x


def test_an_object_that_is_one_of_several_is_added_to_in_place() -> None:
    x = torch.tensor([0.25, -1.5, 0.7, 2.0], dtype=torch.float64)
    out, expected = torch.full_like(x, torch.nan), torch.empty_like(x)
    weft.kernel(halved)(x, out)
    halved(x, expected)
    torch.testing.assert_close(out, expected)
