"""The functions that launch a loop, as Python text, for the kinds of its arguments.

``launch`` finds the plan of a call by its exact key. ``hot`` is for one plan: a single test in C++
(the guard that ``torch.compile`` puts before its own code) says whether the tensors are of the
plan's types, dtypes, devices, shapes and strides, need gradients or not as they did, and whether
torch's modes and transforms are as they were; it stands before ``launch`` for the plans that are
met.
"""

from __future__ import annotations

import struct
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from weft.frontend.specs import ScalarSpec, Spec, TensorSpec, TupleSpec, constant_key
from weft.runtime.signature import scalar_kind

# The guards of torch.compile have no public name: without them each call builds its key.
# pyright: reportPrivateUsage=false
_TensorGuards: Any = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None
)

# The parts of a plan, in their order; extents of the tensors and makers of the results follow.
PLAN = ("call", "pack", "tail", "grad", "guards", "odd")
GUARDS = PLAN.index("guards")
HOTTEST = 4  # plans that are tried before the key is built


@dataclass(slots=True)
class Generated:
    """The functions for one combination of argument kinds, and the plans that they have."""

    launch: Callable[..., Any]  # (*args): a call by exact key
    run: Callable[..., Any]  # (plan, *args): a call whose plan is known
    key: Callable[..., tuple[Any, ...]]
    rest: Callable[..., tuple[Any, ...]]  # what of the key is not about tensors
    hot: Any  # a function that is made anew for each plan, with the plan as its globals
    tensors: list[int]  # their positions
    results: int
    plans: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)
    alias_plans: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)

    def for_plan(self, plan: tuple[Any, ...], args: tuple[Any, ...]) -> types.FunctionType | None:
        """A function that serves calls like this one and passes others on to its global
        ``otherwise``; None where this torch has no guards."""
        if _TensorGuards is None:
            return None
        tensors = [args[k] for k in self.tensors]
        guards = _TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        names = _plan_names(self.tensors, self.results)
        own = {"check": guards.check, "rest_then": self.rest(*args), "guard_objects": guards}
        scope = self.hot.__globals__ | dict(zip(names, plan, strict=True)) | own
        return types.FunctionType(self.hot.__code__, scope)


def _plan_names(tensors: Sequence[int], results: int) -> list[str]:
    return [*PLAN, *(f"e{k}" for k in tensors), *(f"m{k}" for k in range(results))]


def generate(
    name: str, kinds: Sequence[str], specs: Sequence[Spec], writes: list[int], bumped: list[int],
    results: int, uses: dict[str, Any],
) -> tuple[Generated, dict[str, Any]]:  # fmt: skip
    """The functions, and their globals. ``writes``: positions of the tensors that are written;
    ``bumped``: those to tell autograd of; ``uses``: what the text calls (``slow``, ``stale``,
    ``differentiate``, ``holds``; ``alias`` is added later)."""
    scope: dict[str, Any] = {
        "plans": {}, "grad_enabled": torch.is_grad_enabled, "constant_key": constant_key,
        "increment_version": torch._C._increment_version, "types_of": _types_of, "flat": flat,
        "number": _number, "PackError": struct.error, **uses,
    }  # fmt: skip
    exec(compile(launcher_text(kinds, specs, writes, bumped, results), name, "exec"), scope)
    tensors = [k for k, kind in enumerate(kinds) if kind in ("tensor", "field")]
    made = Generated(
        scope["launch"], scope["run"], scope["key"], scope["rest"], scope["hot"], tensors, results,
        scope["plans"],
    )  # fmt: skip
    return made, scope


def launcher_text(
    kinds: Sequence[str], specs: Sequence[Spec], writes: list[int], bumped: list[int], results: int
) -> str:
    """The Python text of ``key``, ``rest``, ``run``, ``launch`` and ``hot`` (see ``generate``)."""
    names = [f"a{k}" for k in range(len(kinds))]
    comma = ", ".join(names)
    everything = _tuple(names)
    pairs = list(zip(kinds, names, strict=True))
    key = _tuple([_KEYS[kind].format(a=name) for kind, name in pairs])
    rest = _tuple([_REST.get(kind, _KEYS[kind]).format(a=name) for kind, name in pairs])
    tensors = [k for k, kind in enumerate(kinds) if kind in ("tensor", "field")]
    outs = [f"r{k}" for k in range(results)]
    plan = ", ".join(_plan_names(tensors, results))
    values = [*(f"p{k}" for k in tensors), *(f"{r}.data_ptr()" for r in outs)]
    for kind, name in pairs:
        values += [_VALUES[kind].format(a=name)] if kind in _VALUES else []
    read = [f"p{k} = a{k}.data_ptr()" for k in tensors]
    launch = [f"r{k} = m{k}()" for k in range(results)]
    launch += [f"if grad and grad_enabled(): return differentiate({everything})"]
    launch += ["try:", f"    slots = pack({', '.join(values)}) + tail"]
    launch += ["except PackError:", f"    return slow({everything})", "call(slots)"]
    if bumped:  # so that autograd refuses to use what it had saved of them
        launch.append(f"increment_version({_tuple([names[k] for k in bumped])})")
    if results:
        launch.append("return " + (outs[0] if results == 1 else f"({', '.join(outs)})"))
    ranges = [
        f"if not {low} <= {n} <= {high}: return slow({everything})"
        for spec, n in zip(specs, names, strict=True)
        if (bounds := _bounds(spec))
        for low, high in [bounds]
    ]  # fmt: skip
    overlaps = [
        f"if p{j} < p{i} + e{i} and p{i} < p{j} + e{j}: return alias({everything})"
        for i in writes for j in tensors if i != j and not (j in writes and j < i)
    ]  # fmt: skip
    fresh = f"if guards and not holds(guards): return stale({everything})"
    lines = [f"def key({comma}):", f"    return {key}"]
    lines += [f"def rest({comma}):", f"    return {rest}"]
    lines += [f"def run(plan, {comma}):", f"    {plan} = plan", *_indented([*read, *launch])]
    lines += [f"def launch({comma}):", "    try:", f"        {plan} = plans[{key}]"]
    lines += [
        "    except (KeyError, AttributeError, TypeError):",
        f"        return slow({everything})",
    ]
    if tensors:
        negated = " or ".join(f"a{k}.is_neg()" for k in tensors)
        lines.append(f"    if odd and ({negated}): return slow({everything})")
    lines += _indented([fresh, *ranges, *read, *overlaps, *launch])
    tests = [f"check({', '.join(names[k] for k in tensors)})"] * bool(tensors)
    tests += [f"{rest} == rest_then"] * (rest != "()")
    lines += [f"def hot({comma}):", "    try:", f"        same = {' and '.join(tests) or True}"]
    lines += ["    except (AttributeError, TypeError):", "        same = False"]
    lines += [f"    if not same: return otherwise({comma})"]
    lines += _indented([fresh, *ranges, *read, *overlaps, *launch])
    return "\n".join(lines) + "\n"


def _tuple(parts: Sequence[str]) -> str:
    return f"({''.join(part + ', ' for part in parts if part)})"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


# The device: True for the CPU, below zero for CUDA's, zero for what has no data.
_TENSOR_KEY = (
    "{a}.dtype, {a}.shape, {a}.stride(), {a}.is_cpu or ~{a}.get_device(), {a}.__class__, "
    "{a}.requires_grad"
)
# What of an argument is in the key, by its kind.
_KEYS = {
    "tensor": _TENSOR_KEY,
    "field": "{a}.element, " + _TENSOR_KEY,
    "scalar": "{a}.__class__",
    "number": "{a}.__class__",
    "size": "{a}.__class__, len({a})",
    "tuple": "types_of({a})",
    "identity": "{a}",
    "plain": "{a}.__class__, {a}",
    "constant": "constant_key({a})",
}
# What of it no guard of tensors sees.
_REST = {"tensor": "", "field": "{a}.element"}
# What of it is packed. ("number": a NumPy scalar, an IntEnum and the like.)
_VALUES = {"scalar": "{a}", "number": "number({a})", "size": "*{a}", "tuple": "*flat({a})"}
_PLAIN = (int, bool, str, torch.dtype)


def kind_of(spec: Spec, value: Any) -> str:
    """How the generated code has to treat an argument."""
    match spec:
        case TensorSpec():
            return "field" if hasattr(value, "element") else "tensor"
        case ScalarSpec():
            return "scalar" if type(value) in (int, float, bool) else "number"
        case TupleSpec():
            return "size" if type(value) is torch.Size else "tuple"
        case _:
            pass
    if value is None or isinstance(value, types.FunctionType | type):
        return "identity"
    return "plain" if type(value) in _PLAIN else "constant"


def _bounds(spec: Spec) -> tuple[int, int] | None:
    """The range that a strong integer has to be in (64 bits are checked by packing)."""
    if isinstance(spec, ScalarSpec) and spec.dtype in ("i8", "i16", "i32"):
        bits = int(spec.dtype[1:]) - 1
        return -(1 << bits), (1 << bits) - 1
    return (0, 255) if isinstance(spec, ScalarSpec) and spec.dtype == "u8" else None


def _types_of(value: Any) -> Any:
    """The key of a tuple: types of what is passed at run time, values of what is constant."""
    if isinstance(value, tuple | list):
        return (type(value), *map(_types_of, value))
    if type(value) in (int, float, bool):
        return type(value)
    return (type(value), None) if scalar_kind(value) else constant_key(value)


def _number(value: Any) -> int | float | bool:
    """A plain Python number, which ``struct`` takes."""
    if hasattr(value, "item"):
        return value.item()
    return int(value) if isinstance(value, int) else float(value)


def flat(value: Any) -> list[Any]:
    """The scalars in a tuple of tuples, in order."""
    numbers: list[Any] = []
    for item in value:
        if isinstance(item, tuple | list):
            numbers += flat(item)
        elif scalar_kind(item):
            numbers.append(_number(item))
    return numbers
