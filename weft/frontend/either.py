"""The choice between the two forms of a loop over elements: Python's own, or compiled.

The host part asks an ``Either`` at each call, with what the loop is given. What it answers depends
on dtypes, shapes and numbers, and is remembered for these.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import torch

# torch's modes and transforms have no public names.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
from weft.frontend.element_kinds import Bool, Element, Float, Int, Kind, Stays, Unset
from weft.frontend.element_loops import ElementLoop
from weft.frontend.element_proofs import results
from weft.values import mutable

MOST = 4096  # sets of arguments that are remembered: a program of ever new sizes must not grow
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_depth = torch._C._functorch.get_dynamic_layer_stack_depth
_MODES = ("grad()", "depth()")  # what is remembered of a call, before its arguments
_BEFORE = len(_MODES)
# What is remembered of an argument.
_KEY = ("{0} if type({0}) is int else ({0}.dtype, {0}.size(), {0}.stride(), {0}.requires_grad, "
        "{0}.is_cpu or {0}.device) if type({0}) is T else other({0})")  # fmt: skip

# What makes of the results of a launch what Python has after the loop; None: Python runs the loop.
Way = Callable[[Any], Any] | None


@mutable
class Either:
    """``names``: of the arguments; ``results``: what the compiled loop hands on; ``parameters``:
    names of the kernel's parameters; ``constants``: of arguments that are compiled in.
    ``compiles(args, wanted, plain)``: the dtypes of what the compiled loop hands on, if it can be
    compiled for these arguments, also its gradient, if one is ``wanted``."""

    loop: ast.For
    found: ElementLoop
    names: Sequence[str]
    results: Sequence[str]
    parameters: frozenset[str]
    constants: frozenset[str]
    compiles: Callable[[tuple[Any, ...], bool, bool], Sequence[torch.dtype] | None] | None = None
    known: dict[tuple[Any, ...], Way] = field(default_factory=dict)
    # The same for any integers between 0 and the largest size of a tensor.
    general: dict[tuple[Any, ...], Way] = field(default_factory=dict)

    def asked(self) -> Callable[..., Way]:
        """What the host part calls: looks up what was answered to such arguments. It is generated,
        for it is in the way of each call."""
        names = [f"a{k}" for k in range(len(self.names))]
        views = (f"alias({names[self.names.index(of)]}, {names[self.names.index(into)]})"
                 for of, into in self.found.views)  # fmt: skip
        parts = ", ".join([*_MODES, *map(_KEY.format, names), *views])
        given = ", ".join(names)
        text = f"""
def asked({given}):
    key = ({parts},)
    try:
        return known[key]
    except KeyError:
        return answer(key, ({given},))
    except TypeError:  # symbols are not to be looked up
        return way(({given},))
"""
        scope: dict[str, Any] = {
            "known": self.known, "answer": self._answer, "way": self._way, "T": torch.Tensor,
            "grad": torch.is_grad_enabled, "depth": _depth, "other": _other, "alias": _is_alias,
        }  # fmt: skip
        exec(compile(text, "<weft choice of a loop>", "exec"), scope)
        return scope["asked"]

    def _answer(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> Way:
        if len(self.known) >= MOST:
            self.known.clear()
            self.general.clear()
        way = self._in_general(key, args)
        if way is None:
            way = self._way(args)
        self.known[key] = way
        return way

    def _in_general(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> Way:
        """What is answered whatever the integers are; None where they have to be known."""
        sizes = [n for v in args if isinstance(v, torch.Tensor) for n in v.size()]
        most = max(map(int, sizes), default=0)
        places = [k for k, v in enumerate(args) if type(v) is int and 0 <= v <= most
                  and self.names[k] not in self.constants]  # fmt: skip
        if not places:
            return None
        items = list(key)
        for k in places:
            items[_BEFORE + k] = Int
        general = tuple(items)
        if general not in self.general:
            given = [Int(0, most) if k in places else v for k, v in enumerate(args)]
            self.general[general] = self._way(args, given)
        return self.general[general]

    def _way(self, args: tuple[Any, ...], given: Sequence[Any] = ()) -> Way:
        """The answer for these arguments; ``given``: what is known of them, if less."""
        tensors = [v for v in args if isinstance(v, torch.Tensor)]
        if self.compiles is None or not tensors or len({v.device for v in tensors}) > 1:
            return None
        if tensors[0].device.type not in ("cpu", "cuda"):
            return None
        if not all(map(_is_usual, tensors)):
            return None
        values = dict(zip(self.names, args, strict=True))
        if any(_is_alias(values[of], values[into]) for of, into in self.found.views):
            return None
        own = self.found.summed & self.parameters
        callers = frozenset(n for n in own if isinstance(values[n], torch.Tensor))
        try:
            known = dict(zip(self.names, given or args, strict=True))
            found = results(self.loop, known, self.results, self.found.shared | callers)
        except Stays:
            return None
        numbers = [not isinstance(kind, Element) for kind in found]
        plain = all(type(v) in _PLAIN and not _is_wrapped(v) for v in tensors)
        if any(numbers) and not plain:  # which has no number to give
            return None
        wanted = torch.is_grad_enabled() and any(v.requires_grad for v in tensors)
        dtypes = self.compiles(args, wanted, plain)
        if dtypes is None or not all(map(_is_alike, found, dtypes)):
            return None
        return _converting(numbers) if any(numbers) else _as_it_is


def _other(value: Any) -> Any:
    """What is remembered of an argument that is no plain tensor and no integer."""
    if isinstance(value, torch.Tensor):
        return (type(value), value.dtype, value.size(), value.stride(), value.requires_grad,
                value.device)  # fmt: skip
    if type(value) is bool or isinstance(value, torch.Size | torch.SymInt):
        return type(value), value
    return type(value), type(value) is float and value == 0


def _is_alias(one: Any, other: Any) -> bool:
    tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    return tensors and torch._C._is_alias_of(one, other)


def _is_alike(kind: Kind, dtype: torch.dtype) -> bool:
    """Whether compiled code computes a name of this kind in the dtype that Python has for it."""
    if isinstance(kind, Element):
        return kind.dtype == dtype
    if isinstance(kind, Float) and kind.mixed:
        return False
    numbers = {Int: torch.int64, Float: torch.float64, Bool: torch.bool}
    return isinstance(kind, Unset) or numbers[type(kind)] == dtype


def _is_usual(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is what loops have elements of, without an own meaning of subscripts (as a
    field has), and no two of its indices are one place in memory."""
    kind = type(tensor)
    if kind not in _PLAIN and kind.__module__ != "torch._subclasses.fake_tensor":
        return False
    if tensor.layout is not torch.strided or tensor.is_neg():
        return False
    reached = 1
    for size, stride in sorted(
        zip(map(int, tensor.size()), map(int, tensor.stride()), strict=True), key=lambda p: p[1]
    ):
        if size > 1 and stride < reached:
            return False
        reached += (size - 1) * stride
    return True


def _as_it_is(found: Any) -> Any:
    return found


def _converting(numbers: Sequence[bool]) -> Callable[[Any], Any]:
    """Has what is a number of Python be one."""
    if len(numbers) == 1:
        return lambda found: found.item()

    def converted(found: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        pairs = zip(found, numbers, strict=True)
        return tuple(v.item() if number else v for v, number in pairs)

    return converted
