"""What torch's profiler recorded, summed by operator and shapes; kernels with their source line,
and what each call has to move."""

from __future__ import annotations

import bisect
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import torch

from weft.codegen.emit import symbol_of
from weft.errors import WeftError, first_line
from weft.kernel import Kernel, kernel_inside
from weft.pytorch.fake import hollow
from weft.pytorch.namespace import announced
from weft.pytorch.profiled import place
from weft.runtime.launch import KernelLike
from weft.values import frozen, mutable


@frozen
class Event:
    """Nanoseconds. ``device``: "cpu" or "cuda"; ``bytes``: what was asked of the allocator."""

    name: str
    device: str
    begin: int
    duration: int
    thread: int
    shapes: str
    own: int
    bytes: int


@frozen
class Entry:
    """An operator with some shapes, or a kernel of a GPU. Times in milliseconds: ``total`` with
    what it calls and ``own`` without, over all calls; ``first`` call, and the median of the
    ``later`` ones (None where there is one call). ``allocated``: bytes, in all. ``moved``: bytes
    that a call has to move, by the kernel's cost; None where that is not known. ``source``: file
    and line of a kernel, "" for what is PyTorch's."""

    name: str
    device: str
    shapes: str
    calls: int
    total: float
    own: float
    first: float
    later: float | None
    allocated: int
    source: str = ""
    moved: int | None = None

    @property
    def bandwidth(self) -> float | None:
        """Gigabytes a second of the later calls."""
        time = self.first if self.later is None else self.later
        return self.moved / time / 1e6 if self.moved and time else None

    @property
    def where(self) -> str:
        """The file's name, and the line."""
        return Path(self.source).name


@mutable
class Notes:
    """The calls of kernels while a profile was taken: arguments without memory, by name and
    shapes."""

    calls: dict[tuple[str, str], tuple[KernelLike, tuple[Any, ...], dict[str, Any]]]
    counts: dict[tuple[str, str], int]

    def note(
        self, kernel: KernelLike, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        every = (*args, *kwargs.values())
        shapes = shown([list(v.size()) if isinstance(v, torch.Tensor) else [] for v in every])
        key = name, shapes
        self.counts[key] = self.counts.get(key, 0) + 1
        if key not in self.calls:
            named = {n: _hollow(v) for n, v in kwargs.items()}
            self.calls[key] = kernel, tuple(map(_hollow, args)), named

    def costs(self) -> Costs:
        """What each call, and each loop of it and of its gradient, has to move."""
        kernels = [k for k in announced() if type(k) is Kernel]
        known = {name: (0, 0, place(k)) for k in kernels for name in _names(k)}
        found = Costs({}, known, {k.profiled_name: place(k) for k in kernels})
        for key, (kernel, args, kwargs) in self.calls.items():
            count, source = self.counts[key], place(kernel)
            found.sources[key[0]] = source
            for counted in (kernel, _derived(kernel)) if _has_gradient(kernel) else (kernel,):
                try:
                    loops = _loops(counted, args, kwargs)
                except (WeftError, RuntimeError) as error:  # PyTorch's that are not there, too
                    if counted is kernel:  # others have no gradient, and none is in the profile
                        found.uncounted[key[0]] = first_line(error)
                    continue
                if counted is kernel:
                    found.calls[key] = sum(bytes for _, bytes in loops)
                for name, bytes in loops:
                    old, many, _ = found.loops.get(name, (0, 0, source))
                    found.loops[name] = old + bytes * count, many + count, source
        return found


@frozen
class Costs:
    """Bytes of a call by name and shapes; of all launches of a loop by its name, with their number
    and the kernel's place; places of kernels by name; why the bytes of some are not known."""

    calls: dict[tuple[str, str], int]
    loops: dict[str, tuple[int, int, str]]
    sources: dict[str, str]
    uncounted: dict[str, str] = field(default_factory=dict)


def _names(kernel: Kernel) -> Iterator[str]:
    """The loops of a kernel that were compiled, and those of its gradient."""
    for form in kernel.specializations:
        if form.compiled is not None:
            yield form.compiled.loop.summary.name
        for adjoint in form.derived.adjoints if form.derived is not None else ():
            yield from (step.name for step in adjoint.steps)


def _has_gradient(kernel: KernelLike) -> bool:
    """Whether its loops' gradients were made, which takes as long to count as to make."""
    inner = kernel_inside(kernel)
    return inner is None or any(form.derived is not None and form.derived.adjoints
                                for form in inner.specializations)  # fmt: skip


def _derived(kernel: KernelLike) -> Any:
    return kernel.backward  # type: ignore[attr-defined]


def _loops(counted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, int]]:
    """Loops and the bytes of one launch. Raises what ``cost`` does where they cannot be counted."""
    return [(x.name, x.bytes.value // x.launches) for x in counted.cost(*args, **kwargs).loops]


def _hollow(value: Any) -> Any:
    """An argument without memory, whose gradient may be asked for as that of ``value`` is."""
    made = hollow(value)
    return made.requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else made


def shown(shapes: Iterable[Sequence[Any]]) -> str:
    """Shapes of those arguments that have some: ``[4, 16] [16]``."""
    return " ".join(str(list(shape)) for shape in shapes if len(shape))


# --- reading -------------------------------------------------------------------------------------
_HIDDEN = ("gpu_user_annotation", "overhead", "cuda_runtime", "cuda_driver", "python_function")


def events(results: Any) -> list[Event]:
    """The events of a profile's ``kineto_results``. Each has its own time: without what it calls in
    the same thread."""
    raw: list[tuple[int, int, int, Any, str]] = []
    memory: dict[int, list[tuple[int, int]]] = {}
    for e in results.events():
        kind = e.activity_type() if hasattr(e, "activity_type") else ""
        device = "cpu" if e.device_type().name == "CPU" else "cuda"
        if e.name() == "[memory]":
            if e.nbytes() > 0:
                memory.setdefault(e.start_thread_id(), []).append((e.start_ns(), e.nbytes()))
        elif kind not in _HIDDEN and not (device == "cuda" and e.is_user_annotation()):
            thread = e.start_thread_id() if device == "cpu" else -1
            raw.append((thread, e.start_ns(), -e.duration_ns(), e, device))
    raw.sort(key=lambda item: item[:3])
    inside = [0] * len(raw)
    stack: list[int] = []
    for k, (thread, begin, negative, _, device) in enumerate(raw):
        while stack and not (raw[stack[-1]][0] == thread
                             and begin < raw[stack[-1]][1] - raw[stack[-1]][2]):  # fmt: skip
            stack.pop()
        if stack and device == "cpu":
            inside[stack[-1]] += -negative
        if device == "cpu":
            stack.append(k)
    times = {thread: [t for t, _ in sorted(found)] for thread, found in memory.items()}
    sizes = {thread: [n for _, n in sorted(found)] for thread, found in memory.items()}
    made: list[Event] = []
    for k, (thread, begin, negative, e, device) in enumerate(raw):
        low = bisect.bisect_left(times.get(thread, []), begin)
        high = bisect.bisect_right(times.get(thread, []), begin - negative)
        asked = sum(sizes[thread][low:high]) if high > low else 0
        made.append(Event(e.name(), device, begin, -negative, thread, shown(e.shapes() or []),
                          max(0, -negative - inside[k]), asked))  # fmt: skip
    return made


def within(every: Sequence[Event], name: str, skip: int) -> list[Event]:
    """The events that begin inside of the ranges ``name``, the first ``skip`` of which are left
    out; those inside of one are part of it. Kernels of a GPU run later than what launches them:
    from the first of these on, all."""
    spans: list[tuple[int, int]] = []
    for begin, end in sorted((e.begin, e.begin + e.duration) for e in every
                             if e.name == name and e.device == "cpu"):  # fmt: skip
        if not spans or begin >= spans[-1][1]:
            spans.append((begin, end))
    spans = spans[skip:]
    if not spans:
        return []
    starts = [begin for begin, _ in spans]

    def kept(event: Event) -> bool:
        at = bisect.bisect_right(starts, event.begin) - 1
        if event.device == "cuda":
            return at >= 0
        return at >= 0 and event.begin < spans[at][1]

    return [event for event in every if kept(event)]


def entries(every: Sequence[Event], costs: Costs) -> list[Entry]:
    """Sums by name, device and shapes."""
    groups: dict[tuple[str, str, str], list[Event]] = {}
    for event in every:
        groups.setdefault((event.name, event.device, event.shapes), []).append(event)
    found: list[Entry] = []
    for (name, device, shapes), calls in groups.items():
        calls.sort(key=lambda event: event.begin)
        times = [event.duration / 1e6 for event in calls]
        plain = _OPERATOR.sub("", name)  # torch.ops has a number behind the name
        moved = costs.calls.get((name, shapes)) or costs.calls.get((plain, shapes))
        source = costs.sources.get(name) or costs.sources.get(plain, "")
        if not source and (loop := _loop_of(name, costs)) is not None:
            total, many, source = costs.loops[loop]
            moved = total // many if device == "cuda" and many else None
        found.append(Entry(
            name, device, shapes, len(calls), sum(times), sum(e.own for e in calls) / 1e6,
            times[0], statistics.median(times[1:]) if times[1:] else None,
            sum(e.bytes for e in calls), source, moved,
        ))  # fmt: skip
    return found


_OPERATOR = re.compile(r"_[0-9a-f]{8}$")


def _loop_of(name: str, costs: Costs) -> str | None:
    """The loop that a GPU's function, or a node of autograd, is of."""
    short = name.removesuffix("Backward")
    for loop in costs.loops:
        if short == loop or name in (symbol_of(loop), f"{symbol_of(loop)}_finish"):
            return loop
    return None
