"""How many elements of each array a function loads and stores, each element once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.index.access import Access, accesses
from weft.index.budget import TOTAL
from weft.index.expression import Dim, Poly, number
from weft.index.relation import Text
from weft.ir.core import Function, Value
from weft.ir.types import MemRefType, ScalarType
from weft.values import mutable

if TYPE_CHECKING:
    import islpy

_POINTS = 100_000  # that isl goes through one by one


@mutable
class Elements:
    """The elements of one array. ``exact``: False where there may be fewer."""

    loaded: int
    stored: int
    exact: bool


def given(
    function: Function, values: Sequence[Any]
) -> tuple[dict[Value | Dim, Any], dict[Value, tuple[Any, ...]]]:
    """What index sets are told of a call: numbers, among them extents, and shapes. ``values``: of
    each argument a tensor or a number."""
    shapes = {arg: tuple(value.shape) for arg, value in zip(function.args, values, strict=True)
              if isinstance(arg.type, MemRefType)}  # fmt: skip
    numbers: dict[Value | Dim, Any] = {
        arg: value for arg, value in zip(function.args, values, strict=True)
        if isinstance(arg.type, ScalarType) and not arg.type.is_float
    }  # fmt: skip
    extents = {Dim(arg, axis): n for arg, shape in shapes.items() for axis, n in enumerate(shape)}
    return numbers | extents, shapes


def elements(
    function: Function, numbers: Mapping[Value | Dim, int], shapes: Mapping[Value, Sequence[int]]
) -> dict[Value, Elements]:
    """The elements of each array argument that a call with these ``numbers``, arguments and
    extents, loads before it has stored them, and those that it stores."""
    args = {a for a in function.args if isinstance(a.type, MemRefType)}
    reads: dict[Value, list[Access]] = {}
    writes: dict[Value, list[Access]] = {}
    for access in accesses(function):
        array = access.memref
        if array not in args:
            continue
        found = _numbered(access, numbers)
        stores = [a for a in writes.setdefault(array, []) if a.kind == "store"]
        if access.kind != "store" and not any(_comes_after(found, store) for store in stores):
            reads.setdefault(array, []).append(found)
        if access.writes:
            writes[array].append(found)
    result: dict[Value, Elements] = {}
    for array in writes:
        loaded, known = _distinct(reads.get(array, []), shapes[array])
        stored, known_too = _distinct(writes[array], shapes[array])
        result[array] = Elements(loaded, stored, known and known_too)
    return result


def _numbered(access: Access, numbers: Mapping[Value | Dim, int]) -> Access:
    """The access of this call: sizes are numbers, and what is not known of it is None."""
    ivs = {loop.iv for loop in access.loops}

    def known(poly: Poly | None) -> Poly | None:
        fits = poly is not None and all(leaf in ivs for leaf in poly.leaves())
        return poly if fits else None

    found = access.substitute(lambda leaf: number(numbers[leaf]) if leaf in numbers else None)
    return replace(found, subscripts=tuple(map(known, found.subscripts)))


def _comes_after(access: Access, store: Access) -> bool:
    """Whether an iteration of ``access`` finds there what it has stored itself before."""
    loops, guards = len(store.loops), len(store.guards)
    return (
        None not in store.subscripts
        and access.subscripts == store.subscripts
        and [loop.iv for loop in access.loops[:loops]] == [loop.iv for loop in store.loops]
        and access.guards[:guards] == store.guards
        and None not in store.guards
    )


def _distinct(found: Sequence[Access], shape: Sequence[int]) -> tuple[int, bool]:
    """How many elements several accesses of one array touch, and whether that is exact."""
    if not found or not shape:
        return len(found[:1]), not found or any(a.exact for a in found)
    known = list(dict.fromkeys(_image(a, shape) for a in found if a.exact))
    others = list(dict.fromkeys(_image(a, shape) for a in found if not a.exact))
    least, most = _count(known), _count([*known, *others])
    if least is None or most is None:
        return math.prod(shape), False
    if least < most:  # an iteration touches one element at most
        each = (_count([domain]) for a in found if not a.exact and (domain := _domain(a)))
        bounds = [count for count in each if count is not None]
        if len(bounds) == sum(not a.exact for a in found):
            most = min(most, least + sum(bounds))
    return most, least == most


def _image(access: Access, shape: Sequence[int]) -> str:
    """The elements of ``access`` as a set, in isl's notation."""
    text = Text()
    indices = {loop.iv: text.fresh(loop.iv.name or "i") for loop in access.loops}
    constraints = text.domain(access, indices)
    names = [text.fresh("e") for _ in shape]
    for name, poly, extent in zip(names, access.subscripts, shape, strict=True):
        constraints.append(f"0 <= {name} < {extent}")
        subscript = None if poly is None else text.affine(poly, indices)
        if subscript is not None:
            constraints.append(f"{name} = {subscript}")
    text.auxiliary += indices.values()
    return text.finish(f"[{', '.join(names)}]", constraints)


def _domain(access: Access) -> str:
    """The iterations of ``access``, likewise; "" where there may be any number of them."""
    if any(loop.lower is None or loop.upper is None for loop in access.loops):
        return ""
    text = Text()
    indices = {loop.iv: text.fresh(loop.iv.name or "i") for loop in access.loops}
    constraints = text.domain(access, indices)
    return text.finish(f"[{', '.join(indices.values())}]", constraints)


def _count(texts: Sequence[str]) -> int | None:
    """How many points the union of some sets has; None where that is too much work."""
    if not texts:
        return 0
    import islpy  # 50 ms: only for who asks what a call costs

    context = islpy.Context()
    context.set_max_operations(TOTAL)
    try:
        every = islpy.Set.read_from_str(context, texts[0])
        for text in texts[1:]:
            every = every.union(islpy.Set.read_from_str(context, text))
        parameters = every.dim(islpy.dim_type.param)
        every = every.project_out(islpy.dim_type.param, 0, parameters).coalesce().make_disjoint()
        parts = [islpy.Set.from_basic_set(part) for part in every.get_basic_sets()]
    except islpy.Error:
        return None
    context.set_max_operations(0)  # what follows is as much work as there are points
    counts = list(map(_points, parts))
    return None if None in counts else sum(count for count in counts if count is not None)


def _points(part: islpy.Set) -> int | None:
    import islpy  # which has made the set

    dims = range(part.dim(islpy.dim_type.set))
    sides: list[int] = []
    for k in dims:
        least, most = part.dim_min_val(k), part.dim_max_val(k)
        if not (least.is_int() and most.is_int()):  # no end, or none at all
            return 0 if part.is_empty() else None
        sides.append(most.to_python() - least.to_python() + 1)
    if part.is_box():
        return math.prod(sides)
    # The longest side last, whose points are not gone through one by one.
    longest, last = max(dims, key=sides.__getitem__), len(sides) - 1
    if math.prod(sides) // sides[longest] > _POINTS:
        return None
    if longest != last:
        part = part.move_dims(islpy.dim_type.param, 0, islpy.dim_type.set, longest, 1)
        part = part.move_dims(islpy.dim_type.set, last, islpy.dim_type.param, 0, 1)
    return part.count_val().to_python()
