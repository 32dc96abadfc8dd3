"""The functions that launch a loop, for the kinds of its arguments.

``launch``, generated as Python text, finds the plan of a call by its exact key. Before it stand
builtins of machine code (``native.py``) for the plans that are met. A builtin is for one plan: a
single test in C++ (the guard that ``torch.compile`` puts before its own code) says whether the
tensors are of the plan's types, dtypes, devices, shapes and strides, need gradients or not as they
did, and whether torch's modes and transforms are as they were.
"""

from __future__ import annotations

import functools
import itertools
import operator
import struct
import sys
import types
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import field
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad, profiler
from torch.utils import _python_dispatch

from weft.frontend.kinds import is_int, passed_range
from weft.frontend.scope import ABSENT, Guard
from weft.frontend.specs import (
    CAPTURED_BITS,
    ConstSpec,
    ScalarSpec,
    Spec,
    TensorSpec,
    TupleSpec,
    constant_key,
)
from weft.lang.dtypes import Housed
from weft.lang.numbers import Number
from weft.runtime import native, record
from weft.runtime.signature import scalar_kind
from weft.values import frozen, mutable

# The guards of torch.compile have no public name: without them each call builds its key.
# pyright: reportPrivateUsage=false
_TensorGuards: Any = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None
)

MOST_BUILTINS = 4  # plans that are tried before the key is built
# A plan gets a builtin at the first of its calls by exact key. There are later ones where torch's
# state is another (below autograd, say), for which it may get one of its own.
PROMOTED_AT = frozenset((1, 4, 16))


class Plan(NamedTuple):
    """What a call needs to know. ``pack`` packs pointers and scalars, ``tail`` follows them;
    ``call`` takes both."""

    call: Callable[..., object]
    pack: Callable[..., bytes]
    tail: bytes
    takes_tensors: bool  # which ``call`` is given, too, in the order of their pointers
    grad: bool
    guards: tuple[Any, ...]
    extents: tuple[int, ...]  # bytes of each tensor from its first to its last element
    makers: tuple[Callable[[], torch.Tensor], ...]  # of the results
    direct: native.Direct | None  # instead of ``call``
    hits: Callable[[bool], int]  # counts the calls that were served by exact key, and were recorded
    unordered: bool  # the result may depend on the order of iterations
    # What tells autograd of a launch, given its arguments and results, once that is known.
    history: list[native.History]


def counter() -> Callable[[bool], int]:
    """Counts calls, and apart from them those that autograd is to know of, each of which makes one
    of the others."""
    counts = itertools.count(1), itertools.count(1)
    return lambda recorded: next(counts[recorded])


@mutable
class Generated:
    """What serves calls with one combination of argument kinds, and the plans that they have."""

    launch: Callable[..., Any]  # (*args): a call by exact key
    run: Callable[..., Any]  # (plan, *args): a call whose plan is known
    key: Callable[..., tuple[Any, ...]]
    kinds: Sequence[str]
    writes: list[int]  # positions of the tensors that are written
    mutated: list[int]  # of those, what autograd is told of
    holds: Callable[[Any], bool]
    plans: dict[tuple[Any, ...], Plan] = field(default_factory=dict)
    alias_plans: dict[tuple[Any, ...], Plan] = field(default_factory=dict)
    pairs: list[tuple[int, int]] = field(init=False)  # whose memory must not overlap

    def __post_init__(self) -> None:
        self.pairs = disjoint_pairs(self.writes, tensors_of(self.kinds))

    def plan_of(self, args: Sequence[Any], shared: tuple[int | None, ...]) -> Plan | None:
        """The plan of a call whose tensors are so far from each other (see ``distances``)."""
        key = self.key(*args)
        return self.alias_plans.get((key, shared)) if shared else self.plans.get(key)

    def for_plan(
        self, plan: Plan, specs: Sequence[Spec], args: Sequence[Any],
        history: native.History | None = None,
    ) -> native.FastCall | None:  # fmt: skip
        """What a builtin does for calls like this one, also where ``args`` are the complex tensors
        and numbers whose parts ``specs`` are of; None where there is none."""
        tensors = tensors_of(self.kinds)
        check = tensor_check(distinct([args[k] for k in tensors]))
        pairs = disjoint_pairs(self.writes, tensors)
        if check is None or plan.takes_tensors or any(args[i] is args[j] for i, j in pairs):
            return None
        head = 8 * (len(tensors) + len(plan.makers))
        block = bytes(head + 8 * sum(map(_slots, specs))) + plan.tail
        if len(block) > native.MOST_BYTES:
            return None
        simple = [g for g in plan.guards if g.by_identity and args]
        others = tuple(g for g in plan.guards if g not in simple)
        work = native.FastCall(
            len(args), check if tensors else None, plan.call, plan.direct, plan.extents,
            [(tensors.index(i), tensors.index(j)) for i, j in pairs],
            self.mutated, plan.makers, block, plan.grad, others, self.holds, history,
            plan=plan,
        )  # fmt: skip
        for guard in simple:
            work.guard(guard.owner, guard.name, guard.read() if guard.holds() else guard.value,
                       guard.item, guard.value is ABSENT)  # fmt: skip
        if plan.unordered:  # the call sees to it where torch is to be deterministic
            work.step(record.ASKED, None, objects=[_deterministic, False])
        for k in self.writes if history else ():  # torch has another history for views
            work.step(record.CALLBACK, k, objects=[torch.Tensor._is_view, False, None])
        slot = head // 8
        for k, (kind, spec, value) in enumerate(zip(self.kinds, specs, args, strict=True)):
            number = tensors.index(k) if k in tensors else -1
            pair = kind == "tuple" and not isinstance(value, tuple | list)  # a complex number
            for step in (_pair,) if pair else KINDS[kind].steps:
                step(work, Argument(k, spec, value, slot, number))
            slot += _slots(spec)
        return work


def tensor_check(tensors: Sequence[torch.Tensor], sizes: bool = True) -> Callable[..., bool] | None:
    """Whether others are as these in all that a plan rests on, or in all but ``sizes`` and strides;
    None where builtins cannot ask. Nested tensors must not be asked about."""
    if _TensorGuards is None or not native.available():
        return None
    any_size = None if sizes else [[None] * t.dim() for t in tensors]
    of_these = {"dynamic_dims_sizes": any_size, "dynamic_dims_strides": any_size}
    check = _TensorGuards(*tensors, **of_these).check
    return check if check(*tensors) else None  # one of them may be there twice


def distinct(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, each once."""
    return [*{id(t): t for t in tensors}.values()]


@frozen
class Direct:
    """A kernel that is one loop and new tensors for it: its ``entry`` (see ``make_entry``), and
    what puts a function before the entry. ``order``: where each of the loop's arguments is from,
    a position among the kernel's own, or ``-1 - n`` for the new tensor ``n``, or None for a number
    that the arguments' kinds decide. ``zeros``: which new tensors are filled with them. ``guards``:
    on what the host part calls. ``plain``: the types of arguments that need no dispatcher.
    ``casts``: whether arguments are cast under autocast, which the check of tensors sees: such
    calls are the kernel's own. ``sized``: a new tensor has sizes of its own, by the arguments
    ``whole``, which are numbers."""

    entry: Callable[..., Any]
    install: Callable[[Callable[..., Any]], None]
    order: Sequence[int | None]
    zeros: Sequence[bool]
    guards: Sequence[Guard]
    plain: Set[type]
    casts: Callable[[Sequence[Any]], bool] | None
    sized: bool = False
    whole: Sequence[int] = ()

    def work(self, loop: native.FastCall, args: Sequence[Any]) -> native.FastCall | None:
        """What a builtin does in place of the kernel, where ``loop`` is what one does for its loop,
        which has met ``args``; it is left to others where somebody watches. None where there is
        none."""
        given = {k: n for k, n in enumerate(self.order) if n is not None and n >= 0}
        fresh = {-1 - n: k for k, n in enumerate(self.order) if n is not None and n < 0}
        special = any(type(args[k]) not in self.plain for k in given)
        if self.casts is not None and torch._C._is_any_autocast_enabled():
            special = special or self.casts([args[k] for k in sorted(given, key=given.__getitem__)])
        made = [args[k] for k in fresh.values()]  # those of a subclass only the host part can make
        # (Those of sizes of their own cost a dispatch to Python where they live on a device alone.)
        special = special or not all(
            isinstance(t, Housed) or (type(t) is torch.Tensor and not self.sized) for t in made
        )
        if special or loop.check is None or not {*loop.mutated} <= given.keys():
            return None
        makers = [fresh_maker(args[fresh[n]], zeros) for n, zeros in enumerate(self.zeros)]
        places = {s.argument: s.slot for s in loop.steps if s.kind == record.TENSOR}
        new, block = [places[fresh[n]] for n in range(len(fresh))], bytearray(loop.block)
        work = native.FastCall(
            len(given), None, loop.call, loop.direct,
            [0 if k in new else e for k, e in enumerate(loop.extents)],
            [pair for pair in loop.disjoint if not {*pair} & {*new}],
            [given[k] for k in loop.mutated], [*makers, *loop.makers], b"", loop.grad,
            loop.guards, loop.holds,
            slots=[*new, *range(len(loop.extents), len(loop.extents) + len(loop.makers))],
            objects=[*loop.objects], items=[*loop.items],
        )  # fmt: skip
        for k in self.whole:
            work.step(record.EQUAL, k, type=int, objects=[args[self.order.index(k)]])
        tensors: list[torch.Tensor] = []
        for step in loop.steps:
            k = step.argument
            if k is None:
                work.steps.append(step)
            elif k in given:
                if step.kind == record.TENSOR:
                    work.tensor(given[k], step.slot, args[k])
                    tensors.append(args[k])
                else:
                    work.steps.append(step._replace(argument=given[k]))
            elif self.order[k] is None:
                if step.kind not in (record.INTEGER, record.FLOAT):
                    return None
                packed = struct.pack("<d" if step.kind == record.FLOAT else "<q", args[k])
                block[8 * step.slot : 8 * step.slot + 8] = packed
        work.block, work.check = bytes(block), tensor_check(distinct(tensors))
        for module, name, idle in _WATCHERS:
            work.guard(vars(module), sys.intern(name), idle, item=True, absent=False)
        for guard in self.guards:
            work.guard(guard.owner, guard.name, guard.value, guard.item, absent=False)
        if fresh:  # which modes may see, or make otherwise
            work.step(record.ASKED, None, objects=[_functions, False])
            work.step(record.ASKED, None, objects=[_deterministic, False])
        if loop.history is not None:
            count = len(given)

            def source(k: int) -> int:
                if k >= len(self.order):  # a result
                    return count + len(fresh) + k - len(self.order)
                n = self.order[k]
                if n is None:
                    return count + len(work.makers) + work.keep(args[k])
                return n if n >= 0 else count - 1 - n

            work.history = loop.history.moved(source)
        return work if work.check is not None else None


# Where values of modules are others than these, somebody watches calls. The check of tensors does
# not see modes that compiled code may ignore, as that of selective checkpoints.
_WATCHERS = (
    (forward_ad, "_current_level", -1),
    (profiler, "_is_profiler_enabled", False),
    (_python_dispatch, "_is_in_torch_dispatch_mode", False),
)
_deterministic = torch._C._get_deterministic_algorithms
_functions = torch._C._is_torch_function_mode_enabled
_empty = getattr(
    getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cpu", None
)


def fresh_maker(like: torch.Tensor, zeros: bool) -> Callable[[], torch.Tensor]:
    """What makes tensors of this size, of these strides and of this kind, filled with ``zeros`` or
    without contents: in half of ``torch.empty_like``'s time, where neither modes nor settings have
    a say in it."""
    shape, strides = tuple(like.size()), like.stride()
    if isinstance(like, Housed):
        from weft.lang.resident import Resident  # where there are such tensors

        plain = fresh_maker(torch.empty_strided(shape, strides, dtype=like.dtype), zeros)
        layout = shape, strides, like.dtype
        return lambda: Resident.fresh(layout, plain, zeros=zeros)
    if _empty is not None and like.device.type == "cpu" and not zeros:
        return functools.partial(_empty, shape, strides, like.dtype)
    how = {"dtype": like.dtype, "device": like.device}
    if zeros and like.is_contiguous():
        return functools.partial(torch.zeros, shape, **how)
    empty = functools.partial(torch.empty_strided, shape, strides, **how)
    return (lambda: empty().zero_()) if zeros else empty


def tensors_of(kinds: Sequence[str]) -> list[int]:
    """The positions of the tensors."""
    return [k for k, kind in enumerate(kinds) if _tensor in KINDS[kind].steps]


def disjoint_pairs(writes: Sequence[int], tensors: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of tensors whose memory must not overlap."""
    return [
        (i, j) for i in writes for j in tensors if i != j and not (j in writes and j < i)
    ]  # fmt: skip


def generate(
    name: str, kinds: Sequence[str], specs: Sequence[Spec], writes: list[int], mutated: list[int],
    results: int, uses: dict[str, Any],
) -> tuple[Generated, dict[str, Any]]:  # fmt: skip
    """The functions, and their globals. ``writes``: positions of the tensors that are written;
    ``mutated``: those to tell autograd of; ``uses``: what the text calls (``slow``, ``stale``,
    ``differentiate``, ``holds``; ``alias`` and ``promote`` are added later)."""
    scope: dict[str, Any] = {
        "plans": {}, "grad_enabled": torch.is_grad_enabled, "constant_key": constant_key,
        "increment_version": torch._C._increment_version, "types_of": _types_of, "flat": flat,
        "number": _number, "PackError": struct.error, "promoted_at": PROMOTED_AT,
        "data_ptr": torch.Tensor.data_ptr,
        "transforms": torch._C._are_functorch_transforms_active, **uses,
    }  # fmt: skip
    exec(compile(launcher_text(kinds, specs, writes, mutated, results), name, "exec"), scope)
    made = Generated(
        scope["launch"], scope["run"], scope["key"], kinds, writes, mutated, uses["holds"],
        scope["plans"],
    )  # fmt: skip
    return made, scope


def launcher_text(
    kinds: Sequence[str], specs: Sequence[Spec], writes: list[int], mutated: list[int], results: int
) -> str:
    """The Python text of ``key``, ``run`` and ``launch`` (see ``generate``)."""
    names = [f"a{k}" for k in range(len(kinds))]
    comma = ", ".join(names)
    everything = _tuple(names)
    pairs = list(zip(kinds, names, strict=True))
    key = _tuple([KINDS[kind].key.format(a=name) for kind, name in pairs])
    tensors = tensors_of(kinds)
    outs = [f"r{k}" for k in range(results)]
    extents, makers = _tuple([f"e{k}" for k in tensors]), _tuple([f"m{k}" for k in range(results)])
    plan = f"call, pack, tail, given, grad, guards, {extents}, {makers}, direct, hits, _, history"
    values = [*(f"p{k}" for k in tensors), *(f"data_ptr({r})" for r in outs)]
    values += [KINDS[kind].packed.format(a=name) for kind, name in pairs if KINDS[kind].packed]
    read = [f"p{k} = data_ptr(a{k})" for k in tensors]
    hidden = [f"not p{k} and e{k} or a{k}.is_neg()" for k in tensors]
    hidden += [f"a{k}.is_inference()" for k in mutated]
    views = "".join(f" or a{k}._is_view()" for k in writes)  # of which torch has another history
    launch = [
        *(f"r{k} = m{k}()" for k in range(results)),
        "recorded = grad and grad_enabled()",
        f"if recorded and (not history or transforms(){views}): return differentiate({everything})",
        "try:",
        f"    slots = pack({', '.join(values)}) + tail",
    ]
    launch += ["except PackError:", f"    return slow({everything})"]
    launch += [f"call(slots, {_tuple([*(f'a{k}' for k in tensors), *outs])}) if given "
               "else call(slots)"]  # fmt: skip
    if mutated:  # so that autograd refuses to use what it had saved of them
        launch.append(f"increment_version({_tuple([names[k] for k in mutated])})")
    launch.append(f"if recorded: history[0].record({', '.join([*names, *outs])})")
    if results:
        launch.append("return " + (outs[0] if results == 1 else f"({', '.join(outs)})"))
    ranges = [
        f"if not {low} <= {n} <= {high}: return slow({everything})"
        for spec, n in zip(specs, names, strict=True)
        if (ends := bounds(spec))
        for low, high in [ends]
    ]  # fmt: skip
    overlaps = [
        f"if p{j} < p{i} + e{i} and p{i} < p{j} + e{j}: return alias({everything})"
        for i, j in disjoint_pairs(writes, tensors)
    ]  # fmt: skip
    fresh = f"if guards and not holds(guards): return stale({everything})"
    lines = [f"def key({comma}):", f"    return {key}"]
    lines += [f"def run(plan, {comma}):", f"    {plan} = plan", *_indented([*read, *launch])]
    lines += [f"def launch({comma}):", "    try:", f"        {plan} = plans[{key}]"]
    lines += [
        *_indented(_indented(read)),
        # RuntimeError: a tensor without strides, or without memory
        "    except (KeyError, AttributeError, TypeError, RuntimeError):",
        f"        return slow({everything})",
    ]
    if hidden:
        lines.append(f"    if {' or '.join(hidden)}: return slow({everything})")
    lines.append(
        f"    if hits(grad and grad_enabled()) in promoted_at: return promote({everything})"
    )
    lines += _indented([fresh, *ranges, *overlaps, *launch])
    return "\n".join(lines) + "\n"


def _tuple(parts: Sequence[str]) -> str:
    return f"({''.join(part + ', ' for part in parts if part)})"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


# The device: True for the CPU, below zero for CUDA's, zero for what has no data.
_TENSOR_KEY = (
    "{a}.dtype, {a}.size(), {a}.stride(), {a}.is_cpu or ~{a}.get_device(), {a}.__class__, "
    "{a}.requires_grad"
)
INT64 = (-(1 << 63), (1 << 63) - 1)


class Argument(NamedTuple):
    """One argument of the calls of a plan: its position, a value that it had, its place in the
    argument block, and of a tensor its number among the tensors."""

    k: int
    spec: Spec
    value: Any
    slot: int
    number: int


def _tensor(work: native.FastCall, a: Argument) -> None:
    work.tensor(a.k, a.number, a.value)


def _scalar(work: native.FastCall, a: Argument) -> None:
    assert isinstance(a.spec, ScalarSpec)
    step = record.FLOAT if a.spec.kind == "float" else record.INTEGER
    work.step(step, a.k, slot=a.slot, type=type(a.value), range=bounds(a.spec) or INT64)


def _size(work: native.FastCall, a: Argument) -> None:
    work.step(record.SIZE, a.k, slot=a.slot, type=torch.Size, range=(id(int), _slots(a.spec)))


def _identity(work: native.FastCall, a: Argument) -> None:
    work.step(record.IDENTITY, a.k, objects=[a.value])


def _plain(work: native.FastCall, a: Argument) -> None:
    work.step(record.EQUAL, a.k, type=type(a.value), objects=[a.value])


def _callback(
    ask: Callable[[Any], Any], packer: Callable[[Spec], Callable[[Any], bytes]] | None = None
) -> Callable[[native.FastCall, Argument], None]:
    """What ``ask`` says of the argument has to be as it was. ``packer`` gives what packs it, or
    raises an exception where that is not possible."""

    def step(work: native.FastCall, a: Argument) -> None:
        pack = packer(a.spec) if packer else None
        objects = [ask, ask(a.value), pack]
        work.step(record.CALLBACK, a.k, slot=a.slot, range=(0, 8 * _slots(a.spec)), objects=objects)

    return step


_PLAIN = (int, bool, str, torch.dtype)


def kind_of(spec: Spec, value: Any) -> str:
    """How the generated code has to treat an argument."""
    match spec:
        case TensorSpec():
            return "field" if hasattr(value, "element") else "tensor"
        case ScalarSpec():
            plain = type(value) in (int, float, bool) or isinstance(value, Number)
            return "scalar" if plain else "number"
        case TupleSpec():
            return "size" if type(value) is torch.Size else "tuple"
        case _:
            pass
    if isinstance(value, types.FunctionType):
        # One that is defined where it is passed may be another object at each call.
        anew = "<" in value.__qualname__ and not value.__closure__
        return "constant" if anew else "identity"
    if value is None or isinstance(value, type):
        return "identity"
    return "plain" if type(value) in _PLAIN else "constant"


def bounds(spec: Spec) -> tuple[int, int] | None:
    """The range that a strong integer has to be in (64 bits are checked by packing)."""
    if isinstance(spec, ScalarSpec) and spec.captured and spec.kind == "int":
        return 1 - (1 << CAPTURED_BITS), (1 << CAPTURED_BITS) - 1
    if isinstance(spec, ScalarSpec) and is_int(spec.dtype or "") and spec.dtype != "i64":
        return passed_range(spec.dtype or "")
    return None


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


def passed(specs: Iterable[Spec], args: Sequence[Any]) -> list[Any]:
    """The values for the arguments of a loop's function: tuples flattened, constants left out."""
    values: list[Any] = []
    for spec, value in zip(specs, args, strict=True):
        if isinstance(spec, TupleSpec):
            values += flat(value)
        elif not isinstance(spec, ConstSpec):
            values.append(value)
    return values


def _slots(spec: Spec) -> int:
    """The words that its value takes in the argument block, apart from a pointer."""
    return len(scalar_formats(spec))


def scalar_formats(spec: Spec) -> str:
    """How ``struct`` packs its value, apart from a pointer."""
    if isinstance(spec, TupleSpec):
        return "".join(map(scalar_formats, spec.items))
    if isinstance(spec, ScalarSpec):
        return "d" if spec.kind == "float" else "q"
    return ""


def _packing(spec: Spec) -> Callable[..., bytes]:
    return struct.Struct("<" + scalar_formats(spec)).pack


def _tuple_packer(spec: Spec) -> Callable[[Any], bytes]:
    pack = _packing(spec)
    return lambda value: pack(*flat(value))


def _number_packer(spec: Spec) -> Callable[[Any], bytes]:
    pack, ends = _packing(spec), bounds(spec)

    def number(value: Any) -> bytes:
        plain = _number(value)
        if ends is not None and not ends[0] <= plain <= ends[1]:
            raise OverflowError
        return pack(plain)

    return number


@frozen
class Kind:
    """How one kind of argument is treated. ``key``: what of it is in the key of a plan, as text in
    which ``{a}`` is the argument; ``packed``: what of it is packed, likewise; ``steps``: what a
    builtin looks at instead."""

    key: str
    packed: str
    steps: tuple[Callable[[native.FastCall, Argument], None], ...]


def _parts_packer(spec: Spec) -> Callable[[Any], bytes]:
    pack = _packing(spec)
    return lambda value: pack(value.real, value.imag)


_pair = _callback(operator.attrgetter("__class__"), _parts_packer)

# "number": a NumPy scalar, an IntEnum and the like.
KINDS = {
    "tensor": Kind(_TENSOR_KEY, "", (_tensor,)),
    "field": Kind(
        "{a}.element, " + _TENSOR_KEY, "", (_callback(operator.attrgetter("element")), _tensor)
    ),
    "scalar": Kind("{a}.__class__", "{a}", (_scalar,)),
    "number": Kind(
        "{a}.__class__", "number({a})",
        (_callback(operator.attrgetter("__class__"), _number_packer),),
    ),
    "size": Kind("{a}.__class__, len({a})", "*{a}", (_size,)),
    "tuple": Kind("types_of({a})", "*flat({a})", (_callback(_types_of, _tuple_packer),)),
    "identity": Kind("{a}", "", (_identity,)),
    "plain": Kind("{a}.__class__, {a}", "", (_plain,)),
    "constant": Kind("constant_key({a})", "", (_callback(constant_key),)),
}  # fmt: skip
