"""Classes with named fields are as those of ``dataclasses``."""

from __future__ import annotations

import copy
import re
from dataclasses import FrozenInstanceError, field, fields, is_dataclass, replace
from pathlib import Path

import pytest

import weft
from weft.values import frozen, mutable


@frozen
class Point:
    """In a plane."""

    x: int
    y: int = 2


@frozen
class Named(Point):
    name: str = ""


@mutable
class Bag:
    items: list[int] = field(default_factory=list)
    label: str = "bag"
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = sum(self.items)


def test_frozen_values_are_what_their_fields_are():
    assert Point(1) == Point(1, 2) == Point(y=2, x=1) != Point(2, 1)
    assert hash(Point(1)) == hash(Point(1, 2))
    assert repr(Named(1, name="a")) == "Named(x=1, y=2, name='a')"
    assert Named(1) != Point(1)
    assert Point(1) != (1, 2)
    assert replace(Point(1), y=5) == Point(1, 5) == copy.deepcopy(Point(1, 5))
    assert is_dataclass(Point)
    assert [f.name for f in fields(Named)] == ["x", "y", "name"]
    match Named(1, 3, "b"):
        case Point(x, y):
            assert (x, y) == (1, 3)
    with pytest.raises(FrozenInstanceError, match=r"cannot change `x` of Point\(x=1, y=2\)"):
        Point(1).x = 2  # type: ignore[misc]


def test_mutable_values_are_themselves():
    one, other = Bag(), Bag([1, 2], "full")
    one.items.append(3)
    one.label = "mine"
    assert Bag().items == []
    assert Bag().label == "bag"
    assert one != Bag()
    assert (other.items, other.label, other.total) == ([1, 2], "full", 3)


@pytest.mark.parametrize("make", [
    lambda: Point(), lambda: Point(1, 2, 3), lambda: Point(1, z=2), lambda: Point(1, 2, x=1),
    lambda: Point(y=1),
])  # fmt: skip
def test_wrong_arguments_are_errors(make):
    with pytest.raises(TypeError, match=re.escape("Point takes x, y")):
        make()


def test_all_of_weft_uses_them():
    files = [p for p in Path(weft.__file__).parent.rglob("*.py") if p.name != "values.py"]
    assert [p.name for p in files if re.search("^@dataclass", p.read_text(), re.MULTILINE)] == []
