"""Whether a loop allows a step: ``legal(nest, step, schedule)``.

A rule gives a ``Refusal`` where a step would be wrong, or would not be what it says. What depends
on the sizes of a call is no refusal but a guard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from weft.errors import ScheduleError
from weft.ir.core import Op, walk
from weft.ir.types import f32, i1, i8, i16
from weft.ir.uniform import WARP
from weft.ir.views import For, Parallel, is_constant
from weft.ir.writes import loaded
from weft.schedule.language import (
    Bind,
    Block,
    BlockDim,
    Cooperate,
    Cover,
    Persist,
    Prefetch,
    Privatize,
    RegisterWindow,
    Schedule,
    Stage,
    StreamingStores,
    Unroll,
    UnrollJam,
    Vectorize,
    only,
    several,
    show,
)
from weft.schedule.nest import LoopNest, Refusal, combined_by
from weft.schedule.own import OwnStep
from weft.schedule.prefetch import ahead
from weft.schedule.register_window import windows
from weft.schedule.unroll import MOST_TURNS, turns
from weft.schedule.unroll_jam import repeatable

THREADS = 1024  # of a block, at most, and 64 along z
_COPIES = 64  # iterations of a thread, at most
_MOST_TURNS, _MOST_OPS = 32, 8192  # that become one, and operations of them for all iterations
_CHECKS = ("weft.assert", "weft.bounds", "weft.check_race", "weft.print")
# What shared memory accumulates by one instruction.
COMBINERS = ("addi", "addf", "maxsi", "minsi", "maxui", "minui", "andi", "ori", "xori")


Rule = Callable[[LoopNest, Any, Schedule], Refusal | None]


def check(nest: LoopNest, schedule: Schedule, rules: dict[type[Any], Rule]) -> None:
    """Raises ``ScheduleError`` for the first step that is not legal."""
    for step in schedule:
        found = legal(nest, step, schedule, rules)
        if found is not None:
            place = found.span or nest.parallel.span
            raise ScheduleError(f"`{show([step])}`: {found.message}", place, found.help)


def legal(
    nest: LoopNest, step: Any, schedule: Schedule, rules: dict[type[Any], Rule]
) -> Refusal | None:
    """Why ``step`` is wrong beside the other steps of ``schedule``; None where it is not."""
    found = _named(nest, step) or _repeated(step, schedule)
    if found is not None:
        return found
    if isinstance(step, OwnStep):
        return step.legal(nest, schedule)
    rule = rules.get(type(step))
    return rule(nest, step, schedule) if rule is not None else None


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(f"`{name}`" for name in names) or "none"


def beside(step: Any, schedule: Schedule, *kinds: type[Any]) -> Refusal | None:
    """A refusal where a step of ``kinds`` stands beside ``step``."""
    for kind in kinds:
        other = only(schedule, kind)
        if other is not None:
            return Refusal(f"it does not go with `{show([other])}`", None, "leave one of them out")
    return None


def _named(nest: LoopNest, step: Any) -> Refusal | None:
    """Whether axes, arrays and loops that a step names are there."""
    for field in fields(step):
        if field.name not in ("axis", "array", "arrays", "loop", "loops"):
            continue
        value = getattr(step, field.name)
        for name in value if isinstance(value, tuple) else (value,):  # pyright: ignore[reportUnknownVariableType]
            loop = ("loop", tuple(nest.serial))
            kinds = {"axis": ("parallel index", nest.axes), "loop": loop, "loops": loop}
            kind, known = kinds.get(field.name, ("array", nest.tensors))
            if name in known:
                continue
            if kind == "parallel index" and name in nest.serial:
                place = nest.serial[name].span
                return Refusal(f"`{name}` is the index of a loop inside of an iteration", place,
                               f"the parallel indices are {listed(known)}")  # fmt: skip
            there = f"there is {listed(known)}" if len(known) == 1 else f"there are {listed(known)}"
            return Refusal(f"there is no {kind} `{name}`", None, there)
    return None


def _repeated(step: Any, schedule: Schedule) -> Refusal | None:
    """Whether a step is there twice, or two of a kind that goes once for each axis or array."""
    key = next((f.name for f in fields(step) if f.name in ("axis", "array", "loop")), None)
    same = [s for s in schedule if type(s) is type(step)]
    if key is not None:
        same = [s for s in same if getattr(s, key) == getattr(step, key)]
    if same and (same[0] != step or same.count(step) > 1):
        return Refusal(f"`{show(same[:1])}` says that already", None, "leave one of them out")
    return _once(step, schedule) if isinstance(step, Vectorize) else None


def _once(step: Any, schedule: Schedule) -> Refusal | None:
    """A refusal where another step of this kind is there."""
    other = only(schedule, type(step))
    if other is None or other == step:
        return None
    return Refusal(f"`{show([other])}` is there already", None, "leave one of them out")


def side_by_side(nest: LoopNest, step: UnrollJam | Vectorize) -> Refusal | None:
    """Why iterations along an axis cannot be carried out side by side; None where they can."""
    one = Parallel(nest.parallel).steps[nest.axes.index(step.axis)]
    if not is_constant(one, 1):
        return Refusal(f"iterations along `{step.axis}` do not go by 1")
    refused = next((op for op in walk(nest.parallel.body) if op.name in _CHECKS), None)
    if refused is None:
        return None
    return Refusal(
        f"iterations along `{step.axis}` check or print, one after the other", refused.span,
        "take the assertion or print out of the loop",
    )  # fmt: skip


def accumulated(nest: LoopNest, step: Privatize) -> str | Refusal:
    """What iterations combine with the elements of an array by, if nothing else happens to it."""
    memref = nest.array(step.array)
    found = combined_by(nest.function, memref)
    if isinstance(found, Op):
        return Refusal(
            f"an iteration asks what is in `{step.array}`, or stores into it", found.span,
            "it may only accumulate: h[k] += v, weft.atomic_max(h[k], v)",
        )  # fmt: skip
    if len(found) != 1:
        return Refusal(
            "iterations combine in several ways" if found else "nothing accumulates into it"
        )
    return Refusal("it is not contiguous") if memref.memref.layout != "contiguous" else min(found)


# -- rules that ask the IR alone


def _unroll_jam(nest: LoopNest, step: UnrollJam, schedule: Schedule) -> Refusal | None:
    parallel = nest.parallel
    if step.copies < 2 - (step.overlap > 0) or step.stride < 1:
        return Refusal("a thread has two iterations or more, a stride of one or more")
    if step.overlap and not (0 < step.overlap <= THREADS and step.stride in (1, step.overlap)):
        return Refusal(f"groups of 1 to {THREADS} threads overlap, of which a stride is one")
    if step.whole and not step.overlap:
        return Refusal("only groups are whole", None, f"unroll_jam({step.axis}, 8, overlap=1)")
    if step.overlap and not step.whole and not repeatable(parallel):
        return Refusal(
            "an iteration that is carried out twice would do twice what is to be done once", None,
            f"write unroll_jam({step.axis}, {step.copies})",
        )  # fmt: skip
    copies = math.prod(jam.copies for jam in several(schedule, UnrollJam))
    if copies > _COPIES:
        return Refusal(f"a thread would have {copies} iterations: {_COPIES} are the most")
    if parallel.attrs["kinds"]:
        return Refusal(
            "the loop reduces into a scalar: each thread's iterations are combined one by one",
            None, "write vectorize(...), or nothing",
        )  # fmt: skip
    found = side_by_side(nest, step)
    return found or beside(step, schedule, Vectorize, Cooperate, Privatize)


def _bind(nest: LoopNest, step: Bind, schedule: Schedule) -> Refusal | None:
    sides = [bind.side for bind in several(schedule, Bind)]
    if step.side != "z" and sides.count(step.side) > 1:
        return Refusal(
            f"two indices are bound to {step.side}: only z collapses several", None,
            "bind one to x, one to y, the others to z",
        )  # fmt: skip
    lower = {"y": "x", "z": "y"}.get(step.side)
    if len(sides) == len(nest.axes) and lower is not None and lower not in sides:
        return Refusal(f"no index is bound to {lower}", None, f"bind(..., {lower})")
    return None


def _block(nest: LoopNest, step: Block, schedule: Schedule) -> Refusal | None:
    if step.x < 1 or step.y < 1 or step.x * step.y > THREADS:
        return Refusal(f"a block has 1 to {THREADS} threads")
    return None


def _block_dim(nest: LoopNest, step: BlockDim, schedule: Schedule) -> Refusal | None:
    sides = step.sides
    if not sides or min(sides) < 1 or math.prod(sides) > THREADS or (*sides, 1, 1)[2] > 64:
        return Refusal(f"a block has 1 to {THREADS} threads, at most 64 along z")
    if len(sides) > max(len(nest.axes), 1) or len(sides) > 3:
        return Refusal(f"there are {len(nest.axes)} parallel indices and {len(sides)} sides")
    if nest.parallel.attrs["kinds"] and math.prod(sides) % WARP:
        return Refusal(f"a loop that reduces has whole warps: a multiple of {WARP} threads")
    return beside(step, schedule, Cooperate)


def _persist(nest: LoopNest, step: Persist, schedule: Schedule) -> Refusal | None:
    if step.blocks < 1:
        return Refusal("there is one block or more for each multiprocessor")
    vector = only(schedule, Vectorize)
    if vector is not None and vector.stride > 1:
        return beside(step, schedule, Vectorize)
    return beside(step, schedule, Cooperate)


def _cover(nest: LoopNest, step: Cover, schedule: Schedule) -> Refusal | None:
    if nest.parallel.attrs["kinds"]:
        return Refusal("the loop reduces into a scalar: a thread has several iterations")
    return beside(step, schedule, Cooperate, Privatize)


def _streaming(nest: LoopNest, step: StreamingStores, schedule: Schedule) -> Refusal | None:
    if not nest.stored:
        return Refusal("the loop stores nothing", None, "leave it out")
    if {*step.arrays} != {*nest.stored}:
        text = show([StreamingStores(nest.stored)])
        return Refusal("all stores of a loop stream, or none", None, f"write {text}")
    if {*map(nest.array, nest.stored)} & loaded(walk(nest.parallel.body)):
        return Refusal("the loop reads what it stores", None, "leave it out")
    return None


def _privatize(nest: LoopNest, step: Privatize, schedule: Schedule) -> Refusal | None:
    if nest.parallel.attrs["kinds"]:
        return Refusal("the loop reduces into a scalar, too")
    kind, element = accumulated(nest, step), nest.array(step.array).memref.element
    if isinstance(kind, Refusal):
        return kind
    native = kind in COMBINERS and element not in (i1, i8, i16) and not element.is_storage
    if not native or (kind == "addf" and element is not f32):
        return Refusal(f"shared memory has no atomic {kind} of {element}")
    return _once(step, schedule) or beside(step, schedule, Vectorize, Cooperate)


def _prefetch(nest: LoopNest, step: Prefetch, schedule: Schedule) -> Refusal | None:
    loop = nest.serial[step.loop]
    if not 1 <= step.steps <= _COPIES:
        return Refusal(f"what is loaded ahead is 1 to {_COPIES} turns")
    if not is_constant(For(loop).step, 1):
        return Refusal(f"turns of `{step.loop}` do not go by 1", loop.span)
    if not ahead(nest.function, loop):
        return Refusal(
            f"nothing that `{step.loop}` loads may be loaded before its turn", loop.span,
            "a load in every turn, of what no other turn writes, where its number alone says",
        )  # fmt: skip
    inner = {op for op in walk(loop.body) if op.name == "scf.for"}
    for other in several(schedule, Prefetch):
        if nest.serial.get(other.loop) in inner:
            return Refusal(f"`{other.loop}` is inside of `{step.loop}`", loop.span, "leave one out")
    return beside(step, schedule, UnrollJam, Cooperate)


def _unroll(nest: LoopNest, step: Unroll, schedule: Schedule) -> Refusal | None:
    for name in step.loops:
        loop = nest.serial[name]
        if not 0 < turns(loop) <= MOST_TURNS:
            return Refusal(
                f"`{name}` is no loop of 1 to {MOST_TURNS} turns, by 1 from a number to a number",
                loop.span,
            )  # fmt: skip
        if any(s.loop == name for s in several(schedule, Prefetch)):
            return Refusal(f"`{name}` is loaded ahead", loop.span, "leave one of them out")
    jams = () if only(schedule, Stage) is not None else (UnrollJam,)
    return beside(step, schedule, *jams, Cooperate)


def _register_window(nest: LoopNest, step: RegisterWindow, schedule: Schedule) -> Refusal | None:
    loop = nest.serial[step.loop]
    if not 2 <= step.turns <= _MOST_TURNS:
        return Refusal(f"2 to {_MOST_TURNS} turns become one")
    if not is_constant(For(loop).step, 1):
        return Refusal(f"turns of `{step.loop}` do not go by 1", loop.span)
    if any(op.name in ("scf.for", "scf.while") or op.name in _CHECKS for op in walk(loop.body)):
        return Refusal(f"`{step.loop}` has a loop or a check inside", loop.span)
    if not windows(nest.function, loop, {}):
        return Refusal(
            f"`{step.loop}` loads no row element by element", loop.span,
            "a load in every turn, of an array that is not written, from the next place each time",
        )  # fmt: skip
    copies = math.prod(jam.copies for jam in several(schedule, UnrollJam))
    if step.turns * copies * len(loop.body.ops) > _MOST_OPS:
        return Refusal(f"{step.turns} turns of {copies} iterations are too many operations")
    if (found := beside(step, schedule, Cooperate, Vectorize, Stage)) is not None:
        return found
    if any(other.loop == step.loop for other in several(schedule, Prefetch)) or any(
        step.loop in other.loops for other in several(schedule, Unroll)
    ):
        return Refusal(f"`{step.loop}` is loaded ahead or written out", loop.span, "leave one out")
    return None


RULES: dict[type[Any], Rule] = {
    UnrollJam: _unroll_jam, Bind: _bind, Block: _block, BlockDim: _block_dim, Persist: _persist,
    Cover: _cover, StreamingStores: _streaming, Privatize: _privatize, Prefetch: _prefetch,
    Unroll: _unroll, RegisterWindow: _register_window,
}  # fmt: skip
