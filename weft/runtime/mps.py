"""Apple's GPUs: loops on tensors of "mps" as Metal's shading language, which torch compiles
(``torch.mps.compile_shader``) and runs in place, on its own stream."""

from __future__ import annotations

import functools
import math
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.codegen.shading import ENTRY, INT64, Form, Stage
from weft.errors import WeftError
from weft.lang.pending import PENDING
from weft.runtime import build
from weft.runtime.shaders import ERROR_WORDS, Compiled, Language, Launch, Wanted, log_launch
from weft.schedule.choose import Choice
from weft.schedule.grid import Dims
from weft.schedule.sizes import Sizes
from weft.values import frozen, mutable

_MOST_LAUNCHES = 1024  # of a call that are kept
_MOST_BYTES = 4096  # that Metal takes beside buffers
_BUFFERS, _THREADS, _SHARED = 31, 1024, 32 << 10  # of every GPU that torch supports
_WORD = 4


class MpsError(WeftError, RuntimeError):
    """Metal, or torch, cannot run a loop on a tensor of "mps"."""


@frozen
class Function:
    """A function that Metal has compiled, for blocks of at most ``most`` threads."""

    call: Callable[..., None]
    most: int


class Device:
    """What ``shaders.Device`` says, of Apple's GPUs. There is one."""

    name, ends_loops = "mps", False
    features = frozenset((INT64,))
    limits = {  # noqa: RUF012 - nobody writes to it
        "max-storage-buffers-per-shader-stage": _BUFFERS - 1,  # one is "params"
        "max-compute-invocations-per-workgroup": _THREADS,
        "max-compute-workgroup-storage-size": _SHARED,
    }

    def pipeline(self, stage: Stage, name: str, threads: Dims, *, free: bool) -> Function:
        try:
            # Without a function of this name Metal says what is wrong with the text.
            made: Any = getattr(torch.mps.compile_shader(stage.text), ENTRY)
        except (SyntaxError, RuntimeError) as error:
            raise MpsError(f"Metal refuses the loop of `{name}`: {error}") from error
        return Function(made, made.max_threads_per_threadgroup)


DEVICE = Device()


@mutable
class MpsCompiled(Compiled):
    """A loop in Metal's language. ``bound`` gives what takes the tensors beside the argument
    block."""

    takes_tensors = True

    def chosen(self, sizes: Sizes, most: int | None = None) -> tuple[Choice, Wanted, Form]:
        """As of any shader. How many threads a block may have is only known of a text that Metal
        has compiled: registers decide."""
        while True:
            choice, wanted, form = super().chosen(sizes, most)
            made = [self.pipeline(wanted, k, free=True) for k in range(len(form.stages))]
            held = min(function.most for function in made)
            held = 1 << held.bit_length() - 1
            if math.prod(choice.block) <= held:
                return choice, wanted, form
            if most is not None and held >= most:
                raise MpsError(
                    f"the loop of `{self.loop.summary.name}` runs in blocks of "
                    f"{math.prod(choice.block)} threads, and Metal has room for {held} of them: "
                    "write a smaller block_dim, or none, or run it on a CPU"
                )
            most = held


class Mps(Language):
    """Metal's language, for torch's device "mps"."""

    version, error, kind, shares = 6, MpsError, MpsCompiled, True

    def __init__(self) -> None:
        super().__init__("mps", "msl", lambda: DEVICE)

    def call(self, compiled: Compiled, error: build.Failure) -> Call:
        return Call(compiled, error)


MPS = Mps()


@frozen
class Ready:
    """What runs for the sizes and numbers of one argument block. ``steps``: for each stage the
    function, what it binds, threads and those of a block; ``params``: the numbers, where they do
    not depend on tensors; ``words``: of 32 bits that blocks leave."""

    launch: Launch
    steps: tuple[tuple[Callable[..., None], tuple[Any, ...], Dims, Dims], ...]
    params: tuple[int, ...] | None
    words: int
    checked: bool


class Call:
    """Calls a loop: ``call(slots, tensors)``, with the packed argument block, and the tensors that
    its pointers are of. A pointer itself says nothing: torch has that of an object of Metal's."""

    def __init__(self, compiled: Compiled, error: build.Failure) -> None:
        """``error`` words a failed check."""
        self.compiled, self.error = compiled, error
        self.deciding = compiled.deciding()
        self.launches: dict[bytes, Launch | None] = {}
        self.ready: dict[bytes, Ready | None] = {}
        self.choice: Choice | None = None  # of the last new sizes and numbers
        self.lock = threading.Lock()
        pointers = [slot.arg for slot in compiled.facts.slots if slot.kind == "pointer"]
        self.names = [f"a{arg}" for arg in pointers]
        self.first = 8 * len(pointers)

    def __call__(self, slots: bytes, tensors: Sequence[torch.Tensor]) -> None:
        numbers = slots[self.first :]
        try:
            ready = self.ready[numbers]
        except KeyError:
            ready = self._anew(numbers, slots)
        if ready is None:
            return
        given: dict[Any, Any] = dict(zip(self.names, tensors, strict=True))
        given["params"] = ready.params
        if ready.params is None:
            self._led(ready, slots, given)
        for name, tensor in zip(self.names, tensors, strict=True):
            if not tensor.numel():
                given[name] = self._nothing
        if ready.words:
            given["partials"] = torch.empty(ready.words, dtype=torch.int32, device="mps")
        if ready.checked:
            given["error"] = torch.zeros(ERROR_WORDS, dtype=torch.int32, device="mps")
        for call, names, threads, block in ready.steps:
            call(*[given[name] for name in names], threads=threads, group_size=block)
        if ready.checked:
            self._checked(given["error"])

    def _led(self, ready: Ready, slots: bytes, given: dict[Any, Any]) -> None:
        """Adds tensors that begin with a word, and the numbers, which say how far behind that their
        elements do."""
        leads = [0] * len(self.names)
        for stage in ready.launch.form.stages:
            for name in stage.led:
                given[name, "led"], leads[self.names.index(name)] = _led(given[name])
        given["params"] = self._params(ready.launch, slots, leads)

    def _params(self, launch: Launch, slots: bytes, leads: Sequence[int]) -> tuple[int, ...]:
        """What torch hands over as words of 64 bits."""
        words = self.compiled.words(slots, launch.parts, struct.pack(f"<{len(leads)}q", *leads))
        words += bytes(-len(words) % 8)
        if len(words) > _MOST_BYTES:
            raise MpsError(
                f"the loop of `{self.compiled.loop.summary.name}` takes {len(words)} bytes of "
                f"sizes and numbers, and Metal {_MOST_BYTES} at most: use fewer tensors"
            )
        return struct.unpack(f"<{len(words) // 8}q", words)

    def _anew(self, numbers: bytes, slots: bytes) -> Ready | None:
        with self.lock:
            for known in (self.launches, self.ready):
                if len(known) >= _MOST_LAUNCHES:
                    known.clear()
            key = b"".join([slots[8 * k : 8 * k + 8] for k in self.deciding])
            if key not in self.launches:
                self.launches[key] = self.compiled.launch(slots)
            launch = self.launches[key]
            made = self.ready[numbers] = None if launch is None else self._ready(launch, slots)
        return made

    def _ready(self, launch: Launch, slots: bytes) -> Ready:
        self.choice, form = launch.choice, launch.form
        log_launch.debug("%s: on mps, grid %s of %s threads", self.compiled.loop.summary.name,
                         launch.grids[0], form.threads)  # fmt: skip
        steps: list[Any] = []
        # What one block computes, no further stage has to combine.
        for k, (stage, grid) in enumerate(zip(form.stages, launch.grids, strict=False)):
            function = self.compiled.pipeline(launch.wanted, k, free=True)
            names = tuple((n, "led") if n in stage.led else n for n in stage.buffers)
            threads = tuple(n * side for n, side in zip(grid, form.threads, strict=True))
            steps.append((function.call, names, threads, form.threads))
        used = {name for _, names, *_ in steps for name in names}
        none = [0] * len(self.names)
        params = self._params(launch, slots, none)
        led = any(stage.led for stage in form.stages)
        words = max(launch.words, 1) * form.word // _WORD if "partials" in used else 0
        return Ready(launch, tuple(steps), None if led else params, words, "error" in used)

    def _checked(self, record: torch.Tensor) -> None:
        """Debug mode waits and raises; otherwise the error is raised by a later launch that finds
        it, or by ``weft.sync``."""
        event = torch.mps.Event()
        event.record()
        PENDING.add(record, event, lambda words: self.compiled.failed(
            [word % (1 << 32) for word in words], self.error))  # fmt: skip
        PENDING.poll(wait=self.compiled.job.options.debug)

    @functools.cached_property
    def _nothing(self) -> torch.Tensor:
        """Metal has no buffers without bytes."""
        return torch.empty(16, dtype=torch.uint8, device="mps")


def _led(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A tensor that begins with the word that the first element of ``tensor`` is a part of, and how
    many elements are in front of this one there."""
    lead = int(tensor.storage_offset()) % (_WORD // tensor.element_size())
    if not lead:
        return tensor, 0
    offset = tensor.storage_offset() - lead
    return tensor.as_strided(tensor.size(), tensor.stride(), offset), lead
