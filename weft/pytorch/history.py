"""Gradients of launches whose arguments are as those of one before.

What a launch tells autograd, and what its backward does, follows from its plan, but for the tensors
and numbers themselves. Both are generated here as Python text, once for a plan: a class of
``autograd.Function`` whose ``forward`` saves (the plan's builtin has carried the loop out), and
whose ``backward`` makes the gradients and calls builtins of the adjoint's steps. The first backward
goes the usual way (``autograd.Launch``) and says what later ones do; what is not as it was then
goes the usual way as well.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
from weft.autodiff.names import adjoint_prefix, before_name
from weft.frontend.specs import ConstSpec, Spec, TensorSpec, TupleSpec
from weft.ir.types import MemRefType
from weft.lang.field import Housed
from weft.pytorch.autograd import Call, Launch, loop_of
from weft.pytorch.dynamo import untraced
from weft.pytorch.loop import NEVER, Loop, Reversed
from weft.pytorch.workspaces import Workspaces
from weft.runtime import native, record
from weft.runtime.cache import disk
from weft.runtime.fastpath import INT64, distinct, fresh_maker, passed, tensor_check
from weft.runtime.function import CompiledFunction
from weft.runtime.launch import TINY, Launcher, check_error
from weft.runtime.overlap import dense, extent
from weft.runtime.signature import TORCH_DTYPES

_MOST = 64  # sets of whole numbers for which the backward of a plan is known
_RARER = 4  # times as many gradients of another kind than a backward is for before it is made anew
_PLAIN = (int, float, bool, torch.Size)


def history(launcher: Launcher, args: tuple[Any, ...]) -> native.History | None:
    """What tells autograd of a launch with arguments of this plan, given them and the results. None
    where that takes more than saving tensors. Precondition: the loop writes to tensors only that
    nothing has met before, to no views, and forward mode has no part in it."""
    args = dense(args)
    specs = list(launcher.forms.specs(args).values())
    tensors = [v for v in args if isinstance(v, torch.Tensor)]
    device = tensors[0].device
    if device.type in ("meta", "mps") or not all(v.numel() for v in tensors):
        return None  # on "mps" there is no machine code that launches
    numbers = [v for v, s in zip(args, specs, strict=True)
               if not isinstance(s, TensorSpec | ConstSpec)]  # fmt: skip
    if any(type(v) not in _PLAIN and not _are_floats(v) for v in numbers):
        return None
    loop = loop_of(launcher, specs, device.type)
    values = passed(specs, args)
    wanted = frozenset(
        k for k in loop.memrefs
        if k < len(values) and values[k].requires_grad and values[k].is_floating_point()
    )  # fmt: skip
    written = frozenset(loop.written)
    if loop.later is not NEVER or wanted & written:
        return None
    made = loop.reversed(wanted, written - wanted)
    if not made.steps or any(before_name(loop.names[k]) in made.reads for k in loop.before):
        return None
    return _History(loop, made, sorted(wanted), specs, args).told


class _History:
    """The history of launches of one plan. ``wanted``: for which arguments of the loop's function a
    gradient is."""

    def __init__(
        self, loop: Loop, made: Reversed, wanted: Sequence[int], specs: Sequence[Spec],
        args: Sequence[Any],
    ) -> None:  # fmt: skip
        self.loop, self.made, self.wanted, self.specs = loop, made, wanted, specs
        self.all: _History | None = None  # of which this is a part
        self.saved = [k for k in loop.memrefs if loop.names[k] in made.reads]
        self.places: list[int] = []  # of the function's arguments among those of a launch
        for k, spec in enumerate(specs):
            parts = len(spec.items) if isinstance(spec, TupleSpec) else 1
            self.places += [k] * (0 if isinstance(spec, ConstSpec) else parts)
        results = len(loop.function.args) - len(self.places)
        self.places += range(len(specs), len(specs) + results)
        # Which of those are numbers, and which of these are whole.
        self.numbers = [k for k, s in enumerate(specs)
                        if not isinstance(s, TensorSpec | ConstSpec)]  # fmt: skip
        self.whole = [n for n, k in enumerate(self.numbers)
                      if type(args[k]) is not float and not _are_floats(args[k])]  # fmt: skip
        self.known: dict[tuple[Any, ...], Callable[..., Any]]  # backwards, by whole numbers
        # How many gradients these are to refuse before they are made anew, and of these still.
        self.refusing: dict[tuple[Any, ...], tuple[int, int]]
        self.lock = threading.Lock()
        scope = _executed("history", self._text(len(specs) + results), {})
        function: Any = type(loop.function.name, (torch.autograd.Function,),
                             {"forward": staticmethod(scope["forward"])})  # fmt: skip
        values = passed(specs, args)
        context = function._backward_cls
        context.shapes = [values[k].size() if k < len(values) else torch.Size()
                          for k in loop.memrefs]  # fmt: skip
        context.dtypes = [
            values[k].dtype if k < len(values) else _dtype(loop, k) for k in loop.memrefs
        ]  # the IR has no unsigned integers
        context.device = next(v.device for v in args if isinstance(v, torch.Tensor))
        context.numbers = ()
        self.function = function
        scope["apply"] = apply = _lean(function).apply
        self.told = native.History(scope["record"], apply, [self.places[k] for k in self.wanted])
        self.forget()

    def _text(self, count: int) -> str:
        names = [f"a{k}" for k in range(count)]
        given = "".join(f"{names[self.places[k]]}, " for k in self.wanted)
        outs = [names[self.places[k]] for k in self.loop.written]
        lines = [f"ctx.to_save = {_tuple([names[self.places[k]] for k in self.saved])}"]
        if len(outs) > 1:
            lines.append("ctx.set_materialize_grads(False)")  # see ``Launch.setup_context``
        if self.numbers:
            lines.append(f"ctx.numbers = {_tuple([names[k] for k in self.numbers])}")
        return f"""\
def record({", ".join(names)}):
    apply({given}{_tuple(names)})
def forward(ctx, {given}rest):
    {_tuple(names)} = rest
    {_lines(lines)}
    return {outs[0] if len(outs) == 1 else _tuple(outs)}
"""

    def forget(self) -> None:
        """Nothing is known of backwards: at first, and when there are other records of tuning."""
        known = self.known = {}
        self.refusing = {}
        self.parts: dict[frozenset[int], _History | None] = {}  # by the results that have none

        def by_numbers(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            backward = known.get(tuple(ctx.numbers[n] for n in self.whole))
            return self.slow(ctx, grads, None) if backward is None else backward(ctx, *grads)

        self._install(by_numbers)

    def _install(self, every: Callable[..., Any]) -> None:
        """``every``: the backward of calls that have a gradient of each result of floats."""
        written = self.loop.written
        floats = {n: k for n, k in enumerate(written) if _dtype(self.loop, k).is_floating_point}

        def routed(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            unseen = [k for n, k in floats.items() if grads[n] is None]
            part = self._part(frozenset(unseen)) if unseen else None
            if part is None:
                return self.slow(ctx, grads, None) if unseen else every(ctx, *grads)
            grads = tuple(grads[written.index(k)] for k in part.loop.written)
            known = part.known.get(tuple(ctx.numbers[n] for n in self.whole))
            return part.slow(ctx, grads, None) if known is None else known(ctx, *grads)

        backward = routed if len(written) > 1 else every
        self.function.backward = staticmethod(untraced(backward))
        self.function._backward_cls.apply = backward  # torch's own looks for it each time

    def _part(self, unseen: frozenset[int]) -> _History | None:
        """The same where there is no gradient of these results; None where it is not known."""
        with self.lock:
            if unseen not in self.parts:
                loop, wanted = self.loop.without(unseen), frozenset(self.wanted)
                part = copy.copy(self)
                part.loop, part.known, part.refusing, part.all = loop, {}, {}, self
                part.made = loop.reversed(wanted, frozenset(loop.written) - wanted)
                self.parts[unseen] = part if loop is not self.loop else None
            return self.parts[unseen]

    def slow(
        self, ctx: Any, grads: Sequence[Any], saved: tuple[Any, ...] | None,
        learner: _History | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The backward as any launch has it. ``saved``: the tensors, if they are unpacked;
        ``learner``: what it is the backward of, if not of this."""
        loop = self.loop
        if self.all is not None:
            given = dict(zip(loop.written, grads, strict=True))
            every = [given.get(k) for k in self.all.loop.written]
            return self.all.slow(ctx, every, saved, self)
        numbers = iter(passed([self.specs[k] for k in self.numbers], ctx.numbers))
        values = [None if k in loop.memrefs else next(numbers)
                  for k in range(len(loop.function.args))]  # fmt: skip
        names = [loop.names[k] for k in self.saved]
        call = Call(loop, values, self.made, frozenset(self.wanted), loop.run, names)
        learn = (learner or self)._learn
        call.learn = functools.partial(learn, ctx.numbers, any(map(_is_one, grads)))
        _, *found = Launch.backward(_Context(ctx, call, saved), *grads)
        return (*(found[loop.memrefs.index(k)] for k in self.wanted), None)

    def _learn(
        self, numbers: tuple[Any, ...], one: bool, made: Reversed, sizes: Workspaces,
        env: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Makes the backward for launches with these numbers, where nothing else decides on it.
        ``one``: the gradient given is one element for all of its places."""
        key = tuple(numbers[n] for n in self.whole)
        most, left = self.refusing.get(key, (1, 0))
        if left:
            self.refusing[key] = most, left - 1
            return
        backward = _backward(self, made, sizes, env, one)
        if backward is None:
            return
        most *= _RARER
        with self.lock:
            if len(self.known) >= _MOST:
                self.known.clear()
                self.refusing.clear()
            self.known[key], self.refusing[key] = backward, (most, most)
            if not self.whole and self.all is None:
                self._install(backward)


class _Context:
    """What ``Launch.backward`` asks of its ``ctx``."""

    def __init__(self, ctx: Any, call: Call, saved: tuple[Any, ...] | None) -> None:
        self.node, self.call = ctx, call
        self.needs_input_grad = ()  # which says whose gradient may not be None: ``slow`` takes none
        if saved is not None:
            self.saved_tensors = saved

    def __getattr__(self, name: str) -> Any:
        return getattr(self.node, name)


def _backward(
    of: _History, made: Reversed, sizes: Workspaces, env: Mapping[str, Any], one: bool
) -> Callable[..., Any] | None:
    """The backward of launches of a plan where ``made`` fits, with workspaces of these sizes; None
    where that follows from more than the plan. ``env``: everything by name, as the first one had
    it; ``one``: of the gradient given, which was one element for all of its places."""
    loop, adjoint = of.loop, made.adjoint
    prefix = adjoint_prefix(loop.function)
    if not repeats(loop, of.made, made) or any(isinstance(v, Housed) for v in env.values()):
        return None
    scope: dict[str, Any] = {
        "slow": of.slow, "loop": loop, "launched": adjoint, "sizes": sizes.remembered(),
    }  # fmt: skip
    names = {name: repr(env[name]) for name, _ in adjoint.segments}
    names |= {loop.names[k]: f"s{n}" for n, k in enumerate(of.saved)} | _numbers(of, env)
    fresh: dict[str, Callable[[], torch.Tensor]] = {}  # what the next step that knows it makes
    narrowed: list[str] = []
    result: list[str] = []
    body: list[str] = []

    def converted(k: int, name: str) -> str:
        own = env[prefix + loop.names[k]].dtype is _dtype(loop, k)
        return "" if own else f".to({name})"

    given = _tuple([f"g{n}" for n in range(len(loop.written))])
    for n, k in enumerate(loop.written):
        if (name := prefix + loop.names[k]) in env:
            scope[f"wide{n}"], names[name] = env[name].dtype, f"h{n}"
            body.append(f"h{n} = g{n}{converted(k, f'wide{n}')}")
            narrowed.append(f"h{n} = h{n}.contiguous()")
            narrowed.append(f"if h{n}.requires_grad:")  # and nobody asks for a derivative of this
            narrowed.append(f"    h{n} = h{n}.detach()")
    for n, k in enumerate(of.wanted):
        name = prefix + loop.names[k]
        fresh[name], names[name] = fresh_maker(env[name], name not in adjoint.defined), f"d{n}"
        scope[f"narrow{n}"] = _dtype(loop, k)
        result.append(f"d{n}{converted(k, f'narrow{n}')}")
    for n, buffer in enumerate(adjoint.taped):
        fresh[buffer.name], names[buffer.name] = fresh_maker(env[buffer.name], zeros=False), f"w{n}"
    for n, name in enumerate(_sized(loop, made, names)):
        fresh[name], names[name] = fresh_maker(env[name], zeros=False), f"e{n}"
    for n, step in enumerate(made.steps):
        own = {name: fresh.pop(name) for name in step.names if name in fresh}
        alike, first = made.values(step, env), None if n else bool(adjoint.taped)
        launched = _launched(step, alike, of, own, first, (_read_once(loop, made), one))
        scope[f"step{n}"] = launched
        if launched is None:
            return None
        passed_on = [names[adjoint.copies[x]] + ".clone()" if x in adjoint.copies else names[x]
                     for x in step.names if x not in own]  # fmt: skip
        call = f"r = step{n}({', '.join(passed_on)})"
        refused = [
            *(_indented([*narrowed, call]) if not n else []),
            "    if r is NotImplemented:",
            f"        return slow(ctx, {given}, saved)",
        ]
        body += [call, "if r is NotImplemented:", *refused]
        if own:
            body.append(f"{', '.join(names[x] for x in own)} = r")
    body += [f"{names[name]} = {names[name]}_made()" for name in fresh]  # which no step knows
    scope |= {f"{names[name]}_made": make for name, make in fresh.items()}
    text = f"""\
def backward(ctx, {given[1:-1]}):
    try:
        saved = ctx.saved_tensors
    except RuntimeError:
        return slow(ctx, {given}, None)
    {_tuple([f"s{n}" for n in range(len(of.saved))])} = saved
    {_lines(body)}
    loop.launched, loop.sizes = launched, sizes
    return {_tuple([*result, "None"])}
"""
    return _executed("backward", text, scope)["backward"]


def _numbers(of: _History, env: Mapping[str, Any]) -> dict[str, str]:
    """What stands for each number of the loop in the text of a backward."""
    found: dict[str, str] = {}
    for k, name in enumerate(of.loop.names):
        if k not in of.loop.memrefs:
            number = of.numbers.index(of.places[k])
            item = k - of.places.index(of.places[k])
            several = f"[{item}]" if isinstance(of.specs[of.places[k]], TupleSpec) else ""
            own = f"ctx.numbers[{number}]{several}"
            found[name] = repr(env[name]) if number in of.whole else own
    return found


def _sized(loop: Loop, made: Reversed, known: Collection[str]) -> list[str]:
    """The tensors that are not saved, whose sizes steps ask for (see ``Call.seen``)."""
    asked = {name for step in made.steps for name in step.names}
    return [name for k in loop.memrefs if (name := loop.names[k]) in asked and name not in known]


def repeats(loop: Loop, base: Reversed, made: Reversed) -> bool:
    """Whether what a backward does follows from the sizes alone, where ``made`` is the form of
    ``base`` that fits these."""
    prefix, adjoint = adjoint_prefix(loop.function), made.adjoint
    notes = (*base.adjoint.notes.values(), *adjoint.notes.values())
    return not (
        made.measure or adjoint.sorted or adjoint.listed
        or any(note.startswith("atomic") for note in notes)
        or any(x.atomic for x in base.adjoint.private.values())  # by the number of threads
        or any(prefix + loop.names[k] in made.writes for k in loop.written)
    )  # fmt: skip


def _read_once(loop: Loop, made: Reversed) -> str:
    """The gradient of the loop's result by name, where one step reads it, else nothing."""
    if len(loop.written) > 1:
        return ""
    name = adjoint_prefix(loop.function) + loop.names[loop.written[0]]
    return name if sum(name in step.names for step in made.steps) == 1 else ""


def _launched(
    step: Loop, values: Sequence[Any], chooser: _History,
    fresh: Mapping[str, Callable[[], torch.Tensor]], first: bool | None,
    given_once: tuple[str, bool],
) -> Callable[..., Any] | None:  # fmt: skip
    """A builtin that launches ``step`` on values like these, without those that are ``fresh``, by
    name: it makes and gives them. It gives NotImplemented where the values are not like these, and
    launches nothing. ``first``: if not None, also where a derivative of it is asked for, or, if
    true, torch is to be deterministic and was not, or was. ``given_once``: a gradient that may
    be one element for all of its places, as that of a sum is, and whether it was. None where there
    is no builtin."""
    if not isinstance(step.run, CompiledFunction):
        return None
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    by_name = {name: v for v, name in zip(values, step.names, strict=True)
               if isinstance(v, torch.Tensor) and name not in fresh}  # fmt: skip
    known = [*by_name.values()]
    check = tensor_check(distinct(known))
    made, _, block = step.run.bound(values)
    slots = made.fitting(tensors, chooser).slots
    pointers = [slot.arg for slot in slots if slot.kind == "pointer"]
    if check is None or len(block) > native.MOST_BYTES:
        return None
    brief = sum(t.numel() for t in tensors) <= TINY and made.loop.summary.brief
    call, direct = made.bound(tensors, check_error, brief=brief)
    given = [name for name in step.names if name not in fresh]
    extents = [0 if step.names[k] in fresh else extent(values[k]) for k in pointers]
    work = native.FastCall(
        len(given), check if known else None, call, direct, extents, (), (), [*fresh.values()],
        block, False, (), all, slots=[pointers.index(step.names.index(name)) for name in fresh],
    )  # fmt: skip
    for place, slot in enumerate(slots):
        kind, value = slot.kind, values[slot.arg]
        if kind == "pointer":
            assert place == pointers.index(slot.arg)
        if (name := step.names[slot.arg]) in fresh:
            continue
        if kind == "pointer":
            work.tensor(given.index(name), place, value)
        elif kind in ("int", "float"):
            if (type(value) is float) != (kind == "float"):
                return None
            how = record.FLOAT if kind == "float" else record.INTEGER
            work.step(how, given.index(name), slot=place, type=type(value), range=INT64)
    given_name, one = given_once
    if given_name in by_name:
        place = pointers.index(step.names.index(given_name))
        work.spread = _spread(known, by_name[given_name], place, one)
    if first is not None:
        work.step(record.ASKED, None, objects=[torch.is_grad_enabled, False])
        work.guard(vars(forward_ad), sys.intern("_current_level"), -1, item=True, absent=False)
    if first:  # it may be carried out in segments
        asked = torch._C._get_deterministic_algorithms
        work.step(record.ASKED, None, objects=[asked, asked()])
    return native.builtin(work.packed(), lambda *_: NotImplemented, disk(step.options))


def _spread(
    tensors: Sequence[torch.Tensor], like: torch.Tensor, slot: int, first: bool
) -> native.Spread | None:
    """For a launch on ``tensors``, of which ``like`` stands at ``slot`` in the block; None where
    that is there twice, on another device, or large. ``first``: it was one element for all
    places."""
    small = like.nbytes <= record.MOST_SPREAD and like.element_size() in record.SPREADS
    twice = sum(t is like for t in tensors) > 1
    if like.device.type != "cpu" or not small or twice:
        return None
    one = torch.zeros((), dtype=like.dtype).expand(like.size())
    check = tensor_check([one if t is like else t for t in distinct(tensors)])
    return check and native.Spread(check, slot, like.numel(), like.element_size(), first)


def _is_one(grad: Any) -> bool:
    """Whether a gradient is one element for all of its places."""
    return type(grad) is torch.Tensor and grad.layout is torch.strided and not any(grad.stride())


def _lean(function: Any) -> Any:
    """What torch's ``apply`` asks of an ``autograd.Function``, as attributes of its own: five are
    looked up at each call, by names that Python's cache does not know."""
    base = torch.autograd.Function
    names = ("setup_context", "clear_saved_tensors_on_access", "boxed_grads_call")
    own = {name: inspect.getattr_static(base, name) for name in names if hasattr(base, name)}
    own |= {"forward": vars(function)["forward"], "_backward_cls": function._backward_cls}
    return type(function.__name__, (torch._C._FunctionBase,), own)


def _are_floats(value: Any) -> bool:
    """Whether a value is a tuple of floats, as the parts of a complex number are."""
    return type(value) is tuple and all(type(v) is float for v in value)


def _dtype(loop: Loop, k: int) -> torch.dtype:
    type_ = loop.function.args[k].type
    assert isinstance(type_, MemRefType)
    return TORCH_DTYPES[type_.element.name]


def _tuple(parts: Sequence[str]) -> str:
    return f"({''.join(part + ', ' for part in parts)})"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _lines(body: Sequence[str]) -> str:
    return "\n    ".join(body)


def _executed(name: str, text: str, scope: dict[str, Any]) -> dict[str, Any]:
    exec(compile(text, f"<weft {name}>", "exec"), scope)
    return scope
