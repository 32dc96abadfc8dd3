"""What classes of Python have beside methods: base classes, setters, functions of the class, and
special methods that change an object."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch

import weft
from tests.refusals import check_refused


@dataclasses.dataclass
class Mean:
    total: float
    n: int = 0
    unit = 2.0
    table = (1.0, 2.0, 4.0)

    def add(self, v):
        self.total = self.total + v
        self.n += 1

    def get(self):
        return self.total / self.n

    @property
    def mean(self):
        return self.total / self.n

    @mean.setter
    def mean(self, v):
        self.total = v * self.n

    @property
    def fixed(self):
        return self.total

    @staticmethod
    def square(v):
        return v * v

    @classmethod
    def of(cls, v):
        return cls(v * cls.unit, 1)

    def __iadd__(self, v):
        self.add(v)
        return self

    def __getitem__(self, k):
        return self.total if k == 0 else self.n

    def __setitem__(self, k, v):
        if k == 0:
            self.total = v
        else:
            self.n = v


@dataclasses.dataclass
class Fading(Mean):
    w: float = 0.5

    def add(self, v):
        super().add(v * self.w)
        self.w = self.w * 0.5

    def get(self):
        return super().get() + 1

    @property
    def mean(self):
        return super().mean * 2

    @classmethod
    def of(cls, v):
        return super().of(v + cls.table[1])

    @staticmethod
    def square(v):
        return v * v * 2


def of_base_classes(x, out):
    for i in range(out.shape[0]):
        a = Fading(0.0)
        for j in range(x.shape[0]):
            a.add(x[j])
        out[i] = a.get() + a.mean + a.square(x[i]) + a.unit + a.table[1] + Fading.square(2.0)


def of_the_class(x, out):
    for i in range(out.shape[0]):
        a, b = Mean.of(x[i]), Fading.of(x[0])
        a.add(b.get())
        b.add(1.0)
        out[i] = a.get() + b.w * b.mean


def set_and_added(x, out):
    for i in range(out.shape[0]):
        a = Mean(0.0)
        for j in range(x.shape[0]):
            a += 2 * x[j]
            if x[j] > 0:
                a += 1.0
                a[0] = a[0] * 2
            a.mean = a.mean + 1
        a.mean *= 2
        b = a
        b.mean += 1
        b += x[i] + 0
        out[i] = a.total + a.n


def bump(mean, v):
    mean.add(v)


def in_partials(x, out):
    for i in range(out.shape[0]):
        a = Mean(0.0)
        put = functools.partial(bump)
        for j in range(x.shape[0]):
            put(a, x[j] * 2)
        out[i] = a.get() + functools.partial(Mean.square, x[i])()


class Weights:
    def __init__(self, w):
        self.w = w

    def store(self, out, i, v):
        out[i] = v * self.w[i]


class Shifted(Weights):
    def store(self, out, i, v):
        super().store(out, i, v + 1)


def of_arguments(x, out):
    o = Shifted(x * 2)
    for i in range(out.shape[0]):
        o.store(out, i, x[i])


PROGRAMS = [of_base_classes, of_the_class, set_and_added, in_partials, of_arguments]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("plain", PROGRAMS, ids=lambda f: f.__name__)
def test_as_in_python(plain: Callable[..., None], dtype: torch.dtype) -> None:
    x = torch.tensor([0.5, -0.25, 1.5, -2.0], dtype=dtype)
    expected, out = torch.zeros(4, dtype=dtype), torch.zeros(4, dtype=dtype)
    plain(x, expected)
    weft.kernel(plain)(x, out)
    torch.testing.assert_close(out, expected)


def test_a_changed_base_class_recompiles() -> None:
    class Base:
        def f(self, v):
            return v + 1

    class Derived(Base):
        def f(self, v):
            return super().f(v) * 2

    o = Derived()

    @weft.kernel
    def kernel(out):
        for i in out:
            out[i] = o.f(1.0)

    kernel(out := torch.zeros(1))
    assert out == 4
    Base.f = lambda self, v: v + 2
    kernel(out)
    assert out == 6


def test_a_changed_method_of_an_object_made_in_the_loop_recompiles() -> None:
    @dataclasses.dataclass
    class Value:
        v: float

        def get(self):
            return self.v

        def __add__(self, other):
            return self.v + other

        @property
        def twice(self):
            return 2 * self.v

    @weft.kernel
    def kernel(out):
        for i in out:
            a = Value(1.0)
            out[i] = a.get() + 10 * (a + 1.0) + 100 * a.twice

    kernel(out := torch.zeros(1))
    assert out == 221
    Value.get = lambda self: self.v + 2
    kernel(out)
    assert out == 223
    Value.__add__ = lambda self, other: self.v - other
    kernel(out)
    assert out == 203
    Value.twice = property(lambda self: 3 * self.v)
    kernel(out)
    assert out == 303


class Scaled:
    factor = 2.0

    @weft.kernel
    def forward(self, x):
        for i in range(x.shape[0]):
            x[i] *= self.factor
        return x.shape[0]

    @property
    def size(self):
        return 10


class Layer(Scaled):
    @weft.kernel
    def forward(self, x):
        n = super().forward(x) + super().size
        for i in range(x.shape[0]):
            x[i] += n
        return [super(Layer, self).size + k + super().size for k in range(2)], n

    @classmethod
    @weft.kernel
    def made(cls, x):
        for i in range(x.shape[0]):
            x[i] = cls.factor
        return super().__new__(cls)


def test_the_host_part_calls_the_method_of_the_base_class() -> None:
    x = torch.ones(3)
    assert Layer().forward(x) == ([20, 21], 13)
    assert x.tolist() == [15.0] * 3
    assert type(Layer.made(x)) is Layer
    assert x.tolist() == [2.0] * 3


def without_a_setter(x):
    for i in range(1):
        a = Mean(x[i])
        a.fixed = 1.0
        x[i] = a.total


def super_in_a_function(x):
    for i in range(1):
        x[i] = super().f(1.0)  # pyright: ignore


def changed_under_a_partial(x):
    for i in range(1):
        a = Mean(x[i])
        f = functools.partial(bump, a)
        a.add(1.0)
        f(2.0)
        x[i] = a.total


REFUSED = {
    without_a_setter: ("the property `fixed` of `Mean` has no setter",
                       "define one: @fixed.setter"),
    super_in_a_function: ("`super()` outside of a method, or with arguments",
                          "write super().method(...) in a method"),
    changed_under_a_partial: ("`f` holds an object that is changed, and does not see it",
                              "hand the object itself on, by a name"),
}  # fmt: skip


@pytest.mark.parametrize("plain", REFUSED, ids=lambda f: f.__name__)
def test_what_is_refused_says_what_to_write(plain: Callable[..., None]) -> None:
    check_refused(plain, torch.zeros(3), *REFUSED[plain])
