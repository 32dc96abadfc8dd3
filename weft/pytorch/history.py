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
import ctypes
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any

import torch
from torch.autograd import forward_ad

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
from weft.frontend.specs import ConstSpec, Spec, TensorSpec, TupleSpec
from weft.ir.types import MemRefType
from weft.lang.dtypes import Housed
from weft.pytorch.autograd import Call, Launch, loop_of
from weft.pytorch.dynamo import untraced
from weft.pytorch.loop import NEVER, Loop, Reversed
from weft.runtime import native, record
from weft.runtime.cache import disk
from weft.runtime.fastpath import INT64, distinct, fresh_maker, passed, tensor_check
from weft.runtime.function import CompiledFunction
from weft.runtime.launch import TINY, Launcher, check_error
from weft.runtime.overlap import dense, extent, is_uniform, strided, uniform_in
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
    if not made.steps or any(loop.before_name(k) in made.reads for k in loop.before):
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
        self.known: dict[tuple[Any, ...], _Known]  # backwards, by whole numbers
        self.lock = threading.Lock()
        self.cache = disk(loop.options)
        several = len(loop.written) > 1  # see ``Launch.setup_context``
        forward = native.forward(not several, self.cache)
        function: Any = type(loop.function.name, (torch.autograd.Function,), {"forward": forward})
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
        apply = _lean(function).apply
        wanted, saved, outs = ([self.places[k] for k in own]
                               for own in (self.wanted, self.saved, loop.written))  # fmt: skip
        names = [f"a{k}" for k in range(len(specs) + results)]
        lists = [[names[k] for k in own] for own in (outs, saved, self.numbers)]
        rest = lists[0][0] if len(outs) == 1 else _tuple(lists[0]), _tuple(lists[1]), (
            _tuple(lists[2]) if lists[2] else "None"
        )  # fmt: skip
        text = f"""\
def record({", ".join(names)}):
    applied(apply, {", ".join([*rest, *(names[k] for k in wanted)])})
"""
        scope = {"apply": apply, "applied": native.applied(self.cache)}
        record = _executed("history", text, scope)["record"]
        self.told = native.History(record, apply, wanted, saved, self.numbers, outs)
        loop.histories.add(self)
        self.forget()

    def forget(self) -> None:
        """Nothing is known of backwards: at first, and when there are other records of tuning."""
        known = self.known = {}
        self.parts: dict[frozenset[int], _History | None] = {}  # by the results that have none

        def by_numbers(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            found = known.get(tuple(ctx.numbers[n] for n in self.whole))
            return self.slow(ctx, grads, None) if found is None else found.first(ctx, *grads)

        self._install(by_numbers)

    def _install(self, every: Callable[..., Any], direct: Callable[..., Any] | None = None) -> None:
        """``every``: the backward of calls that have a gradient of each result of floats;
        ``direct``: a builtin for it."""
        written = self.loop.written
        floats = {n: k for n, k in enumerate(written) if _dtype(self.loop, k).is_floating_point}

        def routed(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            unseen = [k for n, k in floats.items() if grads[n] is None]
            part = self._part(frozenset(unseen)) if unseen else None
            if part is None:
                return self.slow(ctx, grads, None) if unseen else every(ctx, *grads)
            grads = tuple(grads[written.index(k)] for k in part.loop.written)
            found = part.known.get(tuple(ctx.numbers[n] for n in self.whole))
            return part.slow(ctx, grads, None) if found is None else found.first(ctx, *grads)

        backward = routed if len(written) > 1 else every
        self.function.backward = staticmethod(untraced(backward))
        # Torch's own looks for it each time.
        self.function._backward_cls.apply = direct if backward is every and direct else backward

    def _part(self, unseen: frozenset[int]) -> _History | None:
        """The same where there is no gradient of these results; None where it is not known."""
        with self.lock:
            if unseen not in self.parts:
                loop, wanted = self.loop.without(unseen), frozenset(self.wanted)
                part = copy.copy(self)
                part.loop, part.known, part.all = loop, {}, self
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
        call.learn = functools.partial(learn, ctx.numbers, grads)
        _, *found = Launch.backward(_Context(ctx, call, saved), *grads)
        return (*(found[loop.memrefs.index(k)] for k in self.wanted),)

    def _learn(
        self, numbers: tuple[Any, ...], grads: Sequence[Any], made: Reversed,
        env: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Makes the backward for launches with these numbers and such gradients, where nothing else
        decides on it."""
        key = tuple(numbers[n] for n in self.whole)
        with self.lock:
            if key not in self.known and len(self.known) >= _MOST:
                self.known.clear()
            known = self.known.setdefault(key, _Known(self))
            if known.waits(made.uniform, grads):
                return
        found = _backward(known, made, env, any(map(is_uniform, grads)))
        if found is None:
            return
        with self.lock:
            known.add(made.uniform, found)
            if not self.whole and self.all is None:
                self._install(lambda ctx, *own: known.first(ctx, *own), known.first)


class _Known:
    """The backwards for the same whole numbers, by which of the gradients given they are for that
    are one element for all places. A gradient goes from one to the next, until it is one's own; the
    last is for any other, if there is that, and copies what the steps cannot read as it is."""

    def __init__(self, of: _History) -> None:
        self.of = of
        self.kinds: dict[frozenset[str], _Backward] = {}
        # How many gradients each is to refuse before it is made anew, and of these still.
        self.refusing: dict[frozenset[str], tuple[int, int]] = {}
        self.seen = set[tuple[bool, ...]]()  # which gradients were one element, in turn
        self.first: Callable[..., Any] = self._slow

    def _slow(self, ctx: Any, *given: Any) -> tuple[Any, ...]:
        """Given what the Python functions are."""
        count = len(self.of.loop.written)
        return self.of.slow(ctx, given[:count], given[-1] if len(given) > count else None)

    def is_new(self, *grads: Any) -> bool:
        """Whether there may be a backward for such gradients that is not known yet."""
        which = _which(grads)
        return any(which) and which not in self.seen

    def waits(self, kind: frozenset[str], grads: Sequence[Any]) -> bool:
        """Whether that for one ``kind`` is to stay as it is."""
        self.seen.add(_which(grads))
        most, left = self.refusing.get(kind, (1, 0))
        most, left = (most, left - 1) if left else (most * _RARER, most * _RARER)
        self.refusing[kind] = most, left
        return left < most

    def add(self, kind: frozenset[str], found: _Backward) -> None:
        """``found`` is asked first, but after all others where it is for any layout."""
        others = {k: v for k, v in self.kinds.items() if k != kind}
        self.kinds = {kind: found, **others} if kind else {**others, kind: found}
        first, *others = self.kinds.values()
        following: Callable[..., Any] = self._slow
        for own in reversed(others):
            following = own.before(following)
        python = first.before(following)
        self.first = first.builtin(following if others or kind else python) or python


def _which(grads: Sequence[Any]) -> tuple[bool, ...]:
    """Which of the gradients that there are, are one element for all places."""
    return tuple(is_uniform(g) for g in grads if g is not None)


class _Context:
    """What ``Launch.backward`` asks of its ``ctx``."""

    def __init__(self, ctx: Any, call: Call, saved: tuple[Any, ...] | None) -> None:
        self.node, self.call = ctx, call
        self.needs_input_grad = ()  # which says whose gradient may not be None: ``slow`` takes none
        if saved is not None:
            self.saved_tensors = saved

    def __getattr__(self, name: str) -> Any:
        return getattr(self.node, name)


class _Backward:
    """A backward as a Python function of the node, the gradients, and what is saved, if that is
    unpacked. Its text knows the names of ``scope``, among them ``slow``: what is called where it is
    not for a gradient. Where one launch is all that there is to do, ``launched``, that takes
    ``taken`` of the gradients, tensors and numbers."""

    def __init__(
        self, of: _History, text: str, scope: dict[str, Any], launched: Callable[..., Any] | None,
        taken: Sequence[int],
    ) -> None:  # fmt: skip
        self.of, self.scope, self.launched, self.taken = of, scope, launched, taken
        self.python: Callable[..., Any] = _executed("backward", text, scope)["backward"]

    def before(self, following: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which asks ``following`` where it is not for a gradient."""
        self.scope["slow"] = lambda ctx, grads, saved: following(ctx, *grads, saved)
        return self.python

    def builtin(self, fallback: Callable[..., Any]) -> Callable[..., Any] | None:
        """The same of the node and the gradients, if there is that."""
        if self.launched is None:
            return None
        of = self.of
        counts = len(of.loop.written), len(of.saved)
        return native.backward(self.launched, self.taken, counts, fallback, of.cache)


def _backward(known: _Known, made: Reversed, env: Mapping[str, Any], one: bool) -> _Backward | None:
    """The backward of launches of a plan where ``made`` fits; None where it follows from more than
    the plan. ``env``: everything by name, as the first one had it; ``one``: of the gradient given,
    which was one element for all of its places."""
    of = known.of
    loop, adjoint = of.loop, made.adjoint
    prefix = loop.prefix
    if not repeats(loop, of.made, made) or any(isinstance(v, Housed) for v in env.values()):
        return None
    scope: dict[str, Any] = {"strided": strided, "is_new": known.is_new, "is_uniform": is_uniform,
                             "uniform_in": uniform_in}  # fmt: skip
    asked = list[Callable[[], Any]]()
    atomic = is_atomic(of.made, made)
    if adjoint.taped or atomic:  # there may be segments, or other sums
        asked.append(torch._C._get_deterministic_algorithms)
    if atomic:
        asked.append(torch.get_num_threads)
    numbers, fixed = _numbers(of)
    fixed |= {name for name, _ in adjoint.segments}
    names = {loop.names[k]: f"s{n}" for n, k in enumerate(of.saved)} | numbers
    fresh: dict[str, Callable[[], torch.Tensor]] = {}  # what the next step that knows it makes
    result: list[str] = []
    given = _tuple([f"g{n}" for n in range(len(loop.written))])
    body, narrowed = _given(loop, made, env, names, scope)
    for n, k in enumerate(of.wanted):
        name = prefix + loop.names[k]
        fresh[name], names[name] = fresh_maker(env[name], name not in adjoint.defined), f"d{n}"
        scope[f"narrow{n}"] = own = _dtype(loop, k)
        result.append(f"d{n}" if env[name].dtype is own else f"d{n}.to(narrow{n})")
    for n, buffer in enumerate(adjoint.taped):
        fresh[buffer.name], names[buffer.name] = fresh_maker(env[buffer.name], zeros=False), f"w{n}"
    for n, name in enumerate(_sized(loop, made, names)):
        fresh[name], names[name] = fresh_maker(env[name], zeros=False), f"e{n}"
    gradients, whole = [*fresh][: len(of.wanted)], False
    passed_on, launched = list[str](), None
    exact = not any("wide" in text or ".to(" in text for text in (*body, *result))
    single = len(made.steps) == 1 and [*fresh] == gradients
    sources = _sources(of) if single and exact else {}
    for n, step in enumerate(made.steps):
        own = {name: make for name, make in fresh.items() if name in step.names}
        passed_on = [names[adjoint.copies[x]] + ".clone()" if x in adjoint.copies else names[x]
                     for x in step.names if x not in own and x not in fixed]  # fmt: skip
        # Whether the launch is all that there is to do.
        whole = [*own] == gradients and all(text in sources for text in passed_on)
        launched = _launched(
            step, made.values(step, env), of, own, None if n else asked,
            (_read_once(loop, made), one), fixed,
        )  # fmt: skip
        scope[f"step{n}"] = launched
        if launched is None:
            return None
        fresh = {name: make for name, make in fresh.items() if name not in own}
        call = f"r = step{n}({', '.join(passed_on)})"
        refused = [f"    return slow(ctx, {given}, saved)"]
        if not n and not made.uniform:
            again = f"if is_new{given}:", *refused, *narrowed, call, "if r is NotImplemented:"
            refused = _indented([*again, *refused])
        body += [call, "if r is NotImplemented:", *refused]
        if own:
            body.append(f"{', '.join([names[x] for x in own])} = r")
    body += [f"{names[name]} = {names[name]}_made()" for name in fresh]  # which no step knows
    scope |= {f"{names[name]}_made": make for name, make in fresh.items()}
    text = f"""\
def backward(ctx, {given[1:-1]}saved=None):
    if saved is None:
        try:
            saved = ctx.saved_tensors
        except RuntimeError:
            return slow(ctx, {given}, None)
    {_tuple([f"s{n}" for n in range(len(of.saved))])} = saved
    {_lines(body)}
    return {_tuple(result)}
"""
    taken = [sources[text] for text in passed_on] if whole else []
    return _Backward(of, text, scope, launched if whole else None, taken)


def _given(
    loop: Loop, made: Reversed, env: Mapping[str, Any], names: dict[str, str],
    scope: dict[str, Any],
) -> tuple[list[str], list[str]]:  # fmt: skip
    """What the text of a backward makes of the gradients given, which get ``names``, and what it
    makes of them where a step does not know such tensors."""
    body: list[str] = []
    narrowed: list[str] = []
    for n, k in enumerate(loop.written):
        if (name := loop.prefix + loop.names[k]) in env:
            scope[f"wide{n}"], names[name] = env[name].dtype, f"h{n}"
            if env[name].dtype is _dtype(loop, k):
                body.append(f"h{n} = g{n}")
            elif name in made.uniform:
                body.append(f"h{n} = uniform_in(g{n}, wide{n}) if is_uniform(g{n}) else g{n}")
            else:
                body.append(f"h{n} = g{n}.to(wide{n})")
            narrowed.append(f"h{n} = strided(h{n}).contiguous()")
            narrowed.append(f"if h{n}.requires_grad:")  # and nobody asks for a derivative of this
            narrowed.append(f"    h{n} = h{n}.detach()")
    return body, narrowed


def _numbers(of: _History) -> tuple[dict[str, str], set[str]]:
    """What stands for each number of the loop in the text of a backward, and those that are the
    same in all of its calls."""
    found: dict[str, str] = {}
    fixed: set[str] = set()
    for k, name in enumerate(of.loop.names):
        if k not in of.loop.memrefs:
            number = of.numbers.index(of.places[k])
            item = k - of.places.index(of.places[k])
            several = f"[{item}]" if isinstance(of.specs[of.places[k]], TupleSpec) else ""
            found[name] = f"ctx.numbers[{number}]{several}"
            if number in of.whole:
                fixed.add(name)
    return found, fixed


def _sources(of: _History) -> dict[str, int]:
    """Where what stands in the text of a backward is among the gradients given, what is saved, and
    the numbers, in turn."""
    texts = [f"h{n}" for n in range(len(of.loop.written))]
    texts += [f"s{n}" for n in range(len(of.saved))]
    texts += [f"ctx.numbers[{n}]" for n in range(len(of.numbers))]
    return {text: n for n, text in enumerate(texts)}


def _sized(loop: Loop, made: Reversed, known: Collection[str]) -> list[str]:
    """The tensors that are not saved, whose sizes steps ask for (see ``Call.seen``)."""
    asked = {name for step in made.steps for name in step.names}
    return [name for k in loop.memrefs if (name := loop.names[k]) in asked and name not in known]


def repeats(loop: Loop, base: Reversed, made: Reversed) -> bool:
    """Whether what a backward does follows from the sizes alone, where ``made`` is the form of
    ``base`` that fits these; and, if it ``is_atomic``, from the number of threads."""
    prefix, adjoint = loop.prefix, made.adjoint
    return not (
        made.measure or adjoint.sorted or adjoint.listed
        or any(prefix + loop.names[k] in made.writes for k in loop.written)
    )  # fmt: skip


def is_atomic(base: Reversed, made: Reversed) -> bool:
    """Whether threads add to elements of a gradient: ``made``, the form of ``base`` that fits,
    follows from how many there are, and from whether torch is to be deterministic."""
    notes = (*base.adjoint.notes.values(), *made.adjoint.notes.values())
    return any(note.startswith("atomic") for note in notes) or any(
        x.atomic for x in base.adjoint.private.values()
    )


def _read_once(loop: Loop, made: Reversed) -> str:
    """The gradient of the loop's result by name, where one step reads it, else nothing."""
    if len(loop.written) > 1 or made.uniform:
        return ""
    name = loop.prefix + loop.names[loop.written[0]]
    return name if sum(name in step.names for step in made.steps) == 1 else ""


def _launched(
    step: Loop, values: Sequence[Any], chooser: _History,
    fresh: Mapping[str, Callable[[], torch.Tensor]], asked: Sequence[Callable[[], Any]] | None,
    given_once: tuple[str, bool], fixed: Set[str],
) -> Callable[..., Any] | None:  # fmt: skip
    """A builtin that launches ``step`` on values like these, without those that are ``fixed`` or
    ``fresh``, by name: it makes and gives the latter. It gives NotImplemented where the values are
    not like these, and launches nothing. ``asked``: if not None, also where a derivative of it is
    asked for, or one of these functions does not give what it does now. ``given_once``: a gradient
    that may be one element for all of its places, as that of a sum is, and whether it was. None
    where there is no builtin."""
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
    given = [name for name in step.names if name not in fresh and name not in fixed]
    extents = [0 if step.names[k] in fresh else extent(values[k]) for k in pointers]
    work = native.FastCall(
        len(given), check if known else None, call, direct, extents, (), (), [*fresh.values()],
        block, False, (), all, slots=[pointers.index(step.names.index(name)) for name in fresh],
    )  # fmt: skip
    for place, slot in enumerate(slots):
        kind, value = slot.kind, values[slot.arg]
        if kind == "pointer":
            assert place == pointers.index(slot.arg)
        if (name := step.names[slot.arg]) in fresh or name in fixed:
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
    if asked is not None:
        work.step(record.ASKED, None, objects=[torch.is_grad_enabled, False])
        work.guard(vars(forward_ad), sys.intern("_current_level"), -1, item=True, absent=False)
    for function in asked or ():
        work.step(record.ASKED, None, objects=[function, function()])
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
    cell = ctypes.c_int64(first)
    return check and native.Spread(check, slot, like.numel(), like.element_size(), cell)


def _lean(function: Any) -> Any:
    """What torch's ``apply`` asks of an ``autograd.Function``, as items of a dict: five are looked
    up at each call, by names that Python's cache does not know, so that they would be looked for in
    the metaclass and what that inherits from first."""
    base = torch.autograd.Function
    names = ("setup_context", "clear_saved_tensors_on_access", "boxed_grads_call")
    own = {name: inspect.getattr_static(base, name) for name in names if hasattr(base, name)}
    own |= {"forward": vars(function)["forward"], "_backward_cls": function._backward_cls}
    asked = _Asked()
    kind = type("Lean", (type,), {"__getattribute__": asked.__getitem__})
    asked.owner = kind(function.__name__, (torch._C._FunctionBase,), own)
    asked.update({name: asked[name] for name in own})
    return asked.owner


class _Asked(dict[str, Any]):
    """Attributes of the class ``owner``; of those that are no items, what they are."""

    owner: type

    def __missing__(self, name: str) -> Any:
        return type.__getattribute__(self.owner, name)


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
