"""What ``return`` statements give, read from the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

import weft
from weft.frontend.returns import (
    TENSOR,
    Collected,
    Plain,
    Returned,
    is_plain,
    put_together,
    tensors_of,
)


class Pair(NamedTuple):
    u: Any
    v: Any = None


class Derived(Pair):
    def swapped(self):
        return self.v, self.u


class Odd(Pair):
    def __new__(cls, u):
        return super().__new__(cls, u, u)


@dataclass
class Record:
    u: Any
    v: Any


@dataclass
class Started:
    u: Any

    def __post_init__(self) -> None:
        self.u = 2 * self.u


def returned_by(function: Any) -> Returned:
    (found,) = weft.kernel(function).parts.returns
    return found


def pair_of(kind: Any, *items: Any) -> Collected:
    return Collected(kind, ("u", "v")[: len(items)], items)


def test_what_is_made_and_what_is_passed():
    def kernel(x, y):
        out = torch.empty_like(x)
        for i in out:
            out[i] = x[i] + y[i]
        return {"first": (out, x), "more": [Pair(out * 2, v=y), None]}

    pair = pair_of(Pair, TENSOR, TENSOR)
    first, more = (Collected(kind, (), items) for kind, items in
                   ((tuple, (TENSOR, TENSOR)), (list, (pair, Plain(None)))))  # fmt: skip
    found = returned_by(kernel)
    assert found == Returned(("", "x", "", "y"), Collected(dict, ("first", "more"), (first, more)))
    assert found.made == 2


def test_a_name_that_is_assigned_once_and_returned():
    def kernel(x):
        out = torch.empty_like(x)
        for i in out:
            out[i] = x[i]
        result = Pair(out)
        return result  # noqa: RET504

    assert returned_by(kernel) == Returned(("",), pair_of(Pair, TENSOR))

    def changing(x):
        out = torch.empty_like(x)
        result = [out]
        for i in out:
            out[i] = x[i]
        result.append(x)
        return result

    assert returned_by(changing) == Returned(("",), TENSOR)


@pytest.mark.parametrize(("kind", "plain"), [
    (Pair, True), (Derived, True), (Odd, False), (Record, True), (Started, False), (tuple, False),
    (torch.Size, False), (len, False), (torch.Tensor, False),
])  # fmt: skip
def test_classes_whose_objects_are_what_they_are_called_with(kind, plain):
    assert is_plain(kind) is plain


@pytest.mark.parametrize("value", [
    [1, 2], (1,), {"a": 1, "b": 2}, Pair(1, 2), Record(1, 2), Derived(3, 4), None, 5,
    (None, [{"a": 1}, Record(u=Pair(1, 2), v=3)]), [], {},
])  # fmt: skip
def test_what_is_taken_apart_is_put_together(value):
    def form_of(value: Any) -> Any:
        if value is None:
            return Plain(None)
        if isinstance(value, int):
            return TENSOR
        if isinstance(value, dict):
            return Collected(dict, tuple(value), tuple(map(form_of, value.values())))
        if isinstance(value, Pair | Record):
            return pair_of(type(value), form_of(value.u), form_of(value.v))
        return Collected(type(value), (), tuple(map(form_of, value)))

    held = tensors_of(value, form_of(value))
    assert held is not None
    made = put_together(form_of(value), iter(held))
    assert made == value
    assert type(made) is type(value)
    for other in ([1], (1, 2, 3), {"b": 1, "a": 2}, {"c": 1}, "a"):
        assert value == 5 or tensors_of(other, form_of(value)) is None


def test_equal_forms_are_one_form_of_an_operator():
    @weft.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for i in out:
            out[i] = 2 * x[i]
        if x.shape[0] > 3:
            return Pair(out, x)
        return Pair(v=x, u=out)

    assert len({*kernel.parts.returns}) == 1
    for n in (2, 5):
        found = torch.compile(kernel, backend="eager", fullgraph=True)(torch.ones(n))
        assert isinstance(found, Pair)
        assert found.u.tolist() == [2.0] * n
        assert found.v.tolist() == [1.0] * n
