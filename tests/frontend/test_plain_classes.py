"""Classes with an ``__init__`` of their own, whose objects a device loop makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tests.refusals import check_refused


class Vec:
    dim = 2

    def __init__(self, x: Any, y: Any = 0.0) -> None:
        self.x = x
        self.y = y
        self.n = self.norm()

    def norm(self) -> Any:
        return (self.x * self.x + self.y * self.y + 0.1) ** 0.5

    def __add__(self, other: Any) -> Any:
        return Vec(self.x + other.x, self.y + other.y)

    def __mul__(self, factor: Any) -> Any:
        return Vec(self.x * factor, self.y * factor)

    def __eq__(self, other: Any) -> Any:
        return self.x == other.x and self.y == other.y

    def scale(self, factor: Any) -> Any:
        self.x = self.x * factor
        self.y = self.y * factor
        return self


class Vec3(Vec):
    def __init__(self, x: Any, y: Any, z: Any) -> None:
        super().__init__(x, y=y)
        self.z = z
        self.n += self.z


class Particle:
    def __init__(self, p: Vec, v: Vec) -> None:
        self.p, self.v = p, v
        weight = 1.0
        if v.x > 0:
            weight = 2.0
        self.weight = weight

    def step(self, dt: float) -> None:
        self.p = self.p + self.v * dt
        if self.p.x > 1.0:
            self.v.x = -self.v.x


class Variance:
    def __init__(self) -> None:
        self.n, self.mean, self.m2 = 0, 0.0, 0.0

    def add(self, v: Any) -> None:
        self.n += 1
        d = v - self.mean
        self.mean = self.mean + d / self.n
        self.m2 = self.m2 + d * (v - self.mean)

    @property
    def value(self) -> Any:
        return self.m2 / (self.n - 1)


class Temperature:
    def __init__(self, f: Any) -> None:
        self.f = f

    @property
    def f(self) -> Any:
        return self.c * 1.8 + 32

    @f.setter
    def f(self, v: Any) -> None:
        self.c = (v - 32) / 1.8


@dataclasses.dataclass
class Posted:
    a: Any
    b: float = 2.0

    def __post_init__(self) -> None:
        self.c = self.a * self.b


@dataclasses.dataclass
class Scaled:
    x: Any


class Turned(Scaled):
    def __init__(self, x: Any) -> None:
        super().__init__(-x)


class Generator:
    def __init__(self, seed: int) -> None:
        self.s = seed

    def draw(self) -> float:
        self.s = (self.s * 1103515245 + 12345) % 2147483648
        return self.s / 2147483648


def vectors(x: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        a, b = Vec(x[i] * 1, 2.0), Vec3(x[i] + 1, 1.0, 2.0)
        c = a + b * 2.0
        c.scale(2.0).scale(0.75)
        d = c
        d.x = d.x + 1
        out[i] = c.x + c.n + b.z + b.n + a.dim + (a == b) + Turned(x[i]).x


def particles(x: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        p = Particle(Vec(x[i] * 1, 0.0), Vec(x[0] * 2, 1.0))
        for _ in range(10):
            p.step(0.1)
        out[i] = p.p.x + p.p.y * 2 + p.weight


def states(x: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        w, g = Variance(), Generator(i + 1)
        for j in range(x.shape[0]):
            w.add(x[j] * (i + 1))
        t = Temperature(x[i] * 1)
        t.f = t.f + 1
        if x[i] > 0:
            t.f += 2
        out[i] = w.value + w.mean + t.c + Posted(x[i]).c + Posted(x[i], 3.0).c + g.draw() + g.draw()


def escaped(x: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        z, n = Vec(0.0, 0.0), 0
        while n < 20 and z.x * z.x + z.y * z.y <= 4.0:
            z = Vec(z.x * z.x - z.y * z.y + x[i], 2 * z.x * z.y + 0.3)
            n += 1
        out[i] = n


PROGRAMS = [vectors, particles, states, escaped]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("plain", PROGRAMS, ids=lambda f: f.__name__)
def test_as_in_python(plain: Callable[..., None], dtype: torch.dtype) -> None:
    x = torch.tensor([0.5, -0.25, 1.5, -2.0], dtype=dtype)
    expected, out = torch.zeros(4, dtype=dtype), torch.zeros(4, dtype=dtype)
    plain(x, expected)
    weft.kernel(plain)(x, out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("plain", [vectors, states], ids=lambda f: f.__name__)
def test_gradients(plain: Callable[..., None]) -> None:
    x = torch.tensor([0.5, -0.25, 1.5, -2.0], dtype=torch.float64)

    def made(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(4, dtype=torch.float64)
        weft.kernel(plain)(x, out)
        return out

    assert torch.autograd.gradcheck(made, x.requires_grad_())


class Chosen:
    def __init__(self, x: Any) -> None:
        if x > 0:
            self.x = x
        self.y = 1.0


class Late:
    def __init__(self, x: Any) -> None:
        self.y = self.x + x


class Stack:
    def __init__(self) -> None:
        self.items = [0.0] * 4

    def put(self, v: Any) -> None:
        self.items[0] = v


class Loop:
    def __init__(self, x: Any) -> None:
        self.x = x
        self.method = self.get

    def get(self) -> Any:
        return self.x


class Empty:
    def __init__(self) -> None:
        pass


def in_a_branch(x: Any) -> None:
    for i in range(1):
        x[i] = Chosen(x[i]).y


def too_early(x: Any) -> None:
    for i in range(1):
        x[i] = Late(x[i]).y


def a_list_in_it(x: Any) -> None:
    for i in range(1):
        s = Stack()
        s.put(x[i])
        x[i] = s.items[0]


def itself_in_it(x: Any) -> None:
    for i in range(1):
        x[i] = Loop(x[i]).method()


def without_members(x: Any) -> None:
    for i in range(1):
        e = Empty()
        x[i] = e is None


def another_member(x: Any) -> None:
    for i in range(1):
        v = Scaled(x[i])
        v.z = 1.0  # type: ignore[attr-defined]
        x[i] = v.x


REFUSED = {
    in_a_branch: ("`.x` of an object that is being made is assigned in a branch or a loop",
                  "give the value a name there, and assign it to the member after that"),
    too_early: ("`Late` has no `x` yet", "assign it before"),
    a_list_in_it: ("an item of `self.items` is assigned, and lists that objects hold do not change",
                   "give the list a name of its own, and hand it to the functions that change it"),
    itself_in_it: ("the member `method` holds the object itself, which is being made",
                   "hand the object to functions, or call its methods by their names"),
    without_members: ("`Empty` makes an object without members",
                      "call its functions by the class"),
    another_member: ("a struct, Scaled(x) has no member that can be assigned here", ""),
}  # fmt: skip


@pytest.mark.parametrize("plain", REFUSED, ids=lambda f: f.__name__)
def test_what_is_refused_says_what_to_write(plain: Callable[..., None]) -> None:
    check_refused(plain, torch.ones(3), *REFUSED[plain])
