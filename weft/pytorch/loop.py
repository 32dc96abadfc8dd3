"""Device loops with what is derived from them: adjoints and loops with tangents."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from weft.autodiff.activity import activity, holds_floats
from weft.autodiff.adjoint import Adjoint
from weft.autodiff.columns import by_columns
from weft.autodiff.forward_mode import forward_mode
from weft.autodiff.gather import Form
from weft.autodiff.jvp import Tangent
from weft.autodiff.memory import contents
from weft.autodiff.names import adjoint_prefix, before_prefix, unique_names
from weft.autodiff.reverse import Reversal, undone
from weft.index.access import Access, accesses
from weft.index.read_once import reads_each_once
from weft.ir.core import Function, Op, Value, walk
from weft.ir.text import alike
from weft.ir.types import MemRefType, compute_type
from weft.ir.views import accessed_by
from weft.ir.writes import written
from weft.options import Options
from weft.passes.batch import batch
from weft.passes.collapse import collapse
from weft.passes.dce import dce
from weft.passes.forward_stores import forward_stores
from weft.passes.read_uniform import read_uniform
from weft.passes.write_out import as_numbers
from weft.pytorch.workspaces import Workspaces
from weft.runtime.function import CompiledFunction
from weft.runtime.signature import layout
from weft.settings import deep, deeply, rarely_collected

# The arguments of a loop that may be overwritten after it: by loops, by the host part.
Later = tuple[frozenset[int], frozenset[int]]
NEVER: Later = frozenset(), frozenset()

Make = Callable[[Function], Callable[[Sequence[Any]], None]]


class Loop:
    """A device loop: its IR, and its adjoints, made when they are asked for.

    ``run(values)`` carries it out on values for the arguments of ``function``. ``make`` makes that
    from a function, and what carries out the loops that are derived from it.
    """

    def __init__(self, function: Function, options: Options, make: Make | None = None) -> None:
        # The same whether this process has compiled the function, which notes it, or the cache has.
        function = copy.copy(function)
        function.attrs = {**function.attrs, "noalias": True}
        self.run = make(function) if make else CompiledFunction(function, options)
        # Loops in loops that are a box need no tapes, nor does a load of what was just stored; of
        # what small arrays hold, tapes have a number for each element.
        with deep(function.span):
            function = as_numbers(forward_stores(collapse(function)))
            stored = written(function)
        self.function, self.span = function, function.span
        self.options = options
        self.make = make
        self.names = unique_names(function)
        memrefs = [k for k, a in enumerate(function.args) if isinstance(a.type, MemRefType)]
        self._adjoints: dict[Hashable, Reversed] = {}
        self._undone: tuple[Hashable, Reversal] | None = None
        self.launched: Adjoint | None = None  # the last adjoint of which no derivative was asked
        self.sizes: Workspaces | None = None  # of that one
        self.histories = weakref.WeakSet[Any]()  # of launches whose plans are known
        self.later = NEVER
        self.results = frozenset[int]()  # which adjoints may read, see ``reverse``
        self._constant: dict[frozenset[int], frozenset[int]] = {}
        self._forwards: dict[frozenset[int], Forwarded] = {}
        self._batched: dict[tuple[Any, ...], Loop] = {}
        self._without: dict[frozenset[int], Loop] = {}
        self._lock = threading.RLock()
        self.written = [k for k in memrefs if function.args[k] in stored]
        # Where a view is written, torch takes the first tensor for it (see its CopySlices).
        self.memrefs = [*self.written, *(k for k in memrefs if k not in self.written)]

    def constant(self, wanted: frozenset[int]) -> frozenset[int]:
        """The tensors of floats that are written, and do not depend on those ``wanted``: counters,
        masks, running means. They have no derivative."""
        if wanted not in self._constant:
            args = self.function.args
            varying = activity(self.function, [args[k] for k in wanted]).arrays
            found = {k for k in self.written if holds_floats(args[k])}
            self._constant[wanted] = frozenset(k for k in found if args[k] not in varying)
        return self._constant[wanted]

    @functools.cached_property
    def prefix(self) -> str:
        """What the names of adjoints begin with."""
        return adjoint_prefix(self.function)

    def before_name(self, k: int) -> str:
        """By which adjoints know the contents of argument k from before the loop."""
        return self._before + self.names[k]

    @functools.cached_property
    def _before(self) -> str:
        return before_prefix(self.function)

    def arguments(self, names: Collection[str]) -> list[Value]:
        """Its function's arguments by these names."""
        return [a for a, name in zip(self.function.args, self.names, strict=True) if name in names]

    def derived(self, function: Function) -> Loop:
        """A loop that was derived from this one."""
        return Loop(function, self.options, self.make)

    @deeply
    def over_samples(self, values: Sequence[Any], levels: Sequence[tuple[int, ...]]) -> Loop:
        """The loop for those of ``values`` that are batches, of these levels (see ``batch``)."""
        every = sorted({level for own in levels for level in own})
        places = [tuple(map(every.index, own)) for own in levels]
        layouts = [layout(v) if isinstance(a.type, MemRefType) else ""
                   for a, v in zip(self.function.args, values, strict=True)]  # fmt: skip
        key = *places, *layouts
        with self._lock:
            found = self._batched.get(key)
            if found is None:
                found = self._batched[key] = self.derived(batch(self.function, places, layouts))
                found.later = self.later
            return found

    @deeply
    def without(self, unseen: frozenset[int]) -> Loop:
        """The loop that does not write those of the arguments ``unseen`` that it never reads: at
        whose results nobody looks. It has the same arguments."""
        with self._lock:
            found = self._without.get(unseen)
            if found is None:
                function = dce(self.function, {self.function.args[k] for k in unseen})
                found = self if function is self.function else self.derived(function)
                found.later = self.later
                self._without[unseen] = found
            return found

    @property
    def adjoints(self) -> list[Adjoint]:
        """What was derived so far."""
        return [made.adjoint for made in self._adjoints.values()]

    @functools.cached_property
    def halves(self) -> bool:
        """Whether gradients may be of f16 or bf16."""
        elements = (a.type.element for a in self.function.args if isinstance(a.type, MemRefType))
        return any(compute_type(element) is not element for element in elements)

    @functools.cached_property
    def sizes_of(self) -> set[str]:
        """Of a derived loop: the tensors that it asks for their sizes alone. Another step of the
        same derivative may write them."""
        return self.sized if "order" in self.function.attrs else set()

    @functools.cached_property
    @deeply
    def sized(self) -> set[str]:
        """The tensors that it asks for their sizes alone."""
        ops = [op for op in walk(self.function.body) if op.name != "memref.dim"]
        used = {v for op in ops for v in op.operands}
        return {self.names[k] for k in self.memrefs if self.function.args[k] not in used}

    @functools.cached_property
    @deeply
    def overwritten(self) -> set[Op]:
        """The reads of contents that the loop overwrites."""
        return {
            op for op, which in contents(self.function, self.accesses).items() if which != "after"
        }

    @functools.cached_property
    def before(self) -> list[int]:
        """The arguments of whose contents from before the loop an adjoint may need a copy."""
        reads = set(map(accessed_by, self.overwritten))
        return [k for k in self.memrefs if self.function.args[k] in reads]

    @functools.cached_property
    def accesses(self) -> list[Access]:
        return accesses(self.function)

    def reversed(self, wanted: frozenset[int], kept: frozenset[int], **form: Any) -> Reversed:
        """The adjoint in the form that the keywords of ``reverse`` say. The lasting form is the
        usual one where no tape is written over."""
        lasting, rows = form.pop("lasting", False), form.get("rows", 0)
        key = wanted, kept, tuple(sorted(form.items()))
        with self._lock:
            found = self._adjoints.get((*key, lasting))
            if found is None:
                with rarely_collected:
                    adjoint = by_columns(self.function, wanted, kept, **form) if rows else None
                    form.pop("rows", None)
                    if adjoint is None:
                        adjoint = self._taken_apart(wanted, kept, lasting=lasting, **form)
                found = self._adjoints[*key, lasting] = Reversed(adjoint, self.derived)
                if not any(w.extents for w in adjoint.taped):
                    self._adjoints[*key, True] = found
            return found

    def _taken_apart(
        self, wanted: frozenset[int], kept: frozenset[int], *, lasting: bool,
        checkpoints: Collection[Op] = (), chunk: int = 0, **form: Any,
    ) -> Adjoint:  # fmt: skip
        """What ``reverse`` gives. What the form has no part in is kept for the next form: the first
        backward has the second of them."""
        key = wanted, kept, lasting, frozenset(checkpoints), chunk, self.results
        if self._undone is None or self._undone[0] != key:
            made = undone(self.function, wanted, kept, lasting=lasting, checkpoints=checkpoints,
                          chunk=chunk, results=self.results & kept)  # fmt: skip
            self._undone = key, made
        return self._undone[1].taken_apart(Form(**form))

    @property
    def tangents(self) -> list[Tangent]:
        """What was derived in forward mode so far."""
        return [made.tangent for made in self._forwards.values()]

    def forwarded(self, wanted: frozenset[int]) -> Forwarded:
        """The loop with tangents, where the arguments ``wanted`` have some."""
        with self._lock:
            found = self._forwards.get(wanted)
            if found is None:
                with rarely_collected:
                    tangent = forward_mode(self.function, wanted)
                steps = list(map(self.derived, tangent.steps))
                found = self._forwards[wanted] = Forwarded(tangent, steps)
            return found


class Reversed:
    """An adjoint with its steps ready to be launched."""

    def __init__(
        self, adjoint: Adjoint, loop_of: Callable[[Function], Loop],
        uniform: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.adjoint, self.loop_of = adjoint, loop_of
        self.uniform = uniform  # of which the steps read the first element only
        self._uniform: dict[frozenset[str], Reversed] = {}
        self.steps = list(map(loop_of, adjoint.steps))
        for k, step in enumerate(self.steps):
            twin = next((s for s in self.steps[:k] if _one_code(s, step)), None)
            if twin is not None:
                step.run = twin.run
        lengths = adjoint.lengths
        self.measure = loop_of(lengths.measure) if lengths and lengths.measure else None
        loops = [*self.steps, *([self.measure] if self.measure else [])]
        self.reads = {adjoint.copies.get(name, name) for loop in loops for name in loop.names}
        self.writes = {loop.names[k] for loop in self.steps for k in loop.written}
        self.fitting: dict[Hashable, tuple[Reversed, Workspaces]] = {}  # see ``_fitting``

    def values(self, step: Loop, env: Mapping[str, Any]) -> list[Any]:
        """What ``step`` is launched on, of all that goes by name."""
        copies = self.adjoint.copies
        return [env[copies[n]].clone() if n in copies else env[n] for n in step.names]

    def for_uniform(self, given: Iterable[str]) -> Reversed:
        """The adjoint where these of the gradients ``given`` are one element for all of their
        places: the steps read that. So it is for those of which they read each element a few times
        at most (``uniform``). Of others a copy costs little beside the steps, whose schedules know
        what to do with the elements of arrays."""
        names = frozenset(filter(self._reads_each_once, given))
        if not names or self.uniform:
            return self
        found = self._uniform.get(names)
        if found is None:
            with deep(self.adjoint.primal.span):
                steps = [read_uniform(s.function, s.arguments(names)) for s in self.steps]
            adjoint = dataclasses.replace(self.adjoint, steps=tuple(steps))
            found = self._uniform[names] = Reversed(adjoint, self.loop_of, names)
        return found

    def _reads_each_once(self, name: str) -> bool:
        """Whether the steps load from an argument by this name as ``reads_each_once`` says, and the
        schedules of none of them are a person's own."""
        steps = [step for step in self.steps if name in step.names]
        others = self.writes.union(self.adjoint.copies.values())
        if name in others or any(map(_is_scheduled, steps)):
            return False
        return all(
            reads_each_once(s.function, s.accesses, a) for s in steps for a in s.arguments({name})
        )


def _one_code(a: Loop, b: Loop) -> bool:
    """Whether one piece of code carries out both: the sums of two gradients of one shape, say. Not
    where errors or a debugger tell the loops' lines, nor where a person's schedule is one's own."""
    options = a.options
    if options.debug or options.lines or a.make is not None:
        return False
    return not _is_scheduled(a) and not _is_scheduled(b) and alike(a.function, b.function)


def _is_scheduled(loop: Loop) -> bool:
    """Whether its schedule is a person's own."""
    return any(name == loop.function.name for _, name, _ in loop.options.schedules)


class Forwarded:
    """A ``Tangent`` with its steps ready to be launched."""

    def __init__(self, tangent: Tangent, steps: Sequence[Loop]) -> None:
        self.tangent = tangent
        self.steps = steps
