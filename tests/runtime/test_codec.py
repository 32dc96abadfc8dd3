"""Dataclasses as JSON, and back: by name and type, and nothing else is accepted."""

import json
from dataclasses import dataclass

import pytest

from weft.runtime.cache import from_json, to_json


@dataclass(frozen=True)
class Inner:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outer:
    pair: tuple[int, str]
    inner: Inner | None
    many: tuple[Inner, ...]
    steps: list[int | str]
    on: bool


VALUES = [
    Outer((1, "a"), None, (), [], True),
    Outer((2, ""), Inner("x", (1, 2)), (Inner("y"), Inner("z", (3,))), [1, "add", -2], False),
]


@pytest.mark.parametrize("value", VALUES)
def test_what_is_encoded_is_decoded(value):
    assert from_json(Outer, json.loads(json.dumps(to_json(value)))) == value


def test_fields_have_names():
    assert to_json(VALUES[1])["inner"] == {"name": "x", "sizes": [1, 2]}
    shuffled = dict(reversed(to_json(VALUES[1]).items()))
    assert from_json(Outer, shuffled) == VALUES[1]


@pytest.mark.parametrize("change", [
    {"pair": [1]}, {"pair": [1, "a", 2]}, {"pair": ["a", 1]}, {"pair": None}, {"on": 1},
    {"inner": {"name": "x"}}, {"inner": {"name": "x", "sizes": [1.0]}}, {"many": {}}, {"more": 1},
    {"inner": {"name": "x", "sizes": [], "other": 1}}, {"steps": [None]}, {"steps": [True]},
])  # fmt: skip
def test_other_forms_are_refused(change):
    with pytest.raises(ValueError, match=" "):
        from_json(Outer, {**to_json(VALUES[1]), **change})
    with pytest.raises(ValueError, match="no "):
        from_json(Outer, [])
