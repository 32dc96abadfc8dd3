"""WebGPU: loops as WGSL, run by the package ``wgpu`` on Vulkan, Metal, DirectX 12 or OpenGL.

Tensors are in the memory of the CPU. A call copies what the loop reads or changes into buffers of
the device, runs it, and copies back what it changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import struct
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, wait
from itertools import pairwise
from typing import Any

from weft.codegen.shading import Form
from weft.lang.resident import BOTH, DEVICE, HOST, Home, own_users, users
from weft.runtime import build
from weft.runtime.shaders import ERROR_WORDS, Compiled, Language, Launch, log_launch
from weft.runtime.webgpu_device import Device, WebGpuError, device
from weft.schedule.choose import Choice
from weft.settings import rarely_collected
from weft.values import frozen

_MOST_BINDINGS, _MOST_LAUNCHES = 64, 1024  # of a call that are kept
_LARGE = 1 << 20  # bytes that take longer to copy than another thread to begin


class WebGpu(Language):
    """Shaders in WGSL, for the device of this process; or what tests ask for."""

    version, error = 13, WebGpuError

    def __init__(
        self, name: str = "webgpu", dialect: str = "wgsl", device: Callable[[], Device] = device
    ) -> None:
        super().__init__(name, dialect, device)

    def call(self, compiled: Compiled, error: build.Failure) -> Call:
        return Call(compiled, self.device(), error)


WEBGPU = WebGpu()


@frozen
class Binding:
    """A launch with its buffers: ``own`` ones besides those of tensors. ``checked``: it has an
    error record. ``parts``: those in which blocks leave something."""

    parts: int
    stages: tuple[tuple[Any, Any, tuple[int, int, int]], ...]
    own: tuple[Any, ...]
    checked: bool


@frozen
class Ready:
    """A call all of whose tensors are resident: their homes, storages, and whether it writes to
    them."""

    binding: Binding
    homes: tuple[tuple[weakref.ref[Home], int, bool], ...]
    epoch: int


class Call:
    """Calls a loop: ``call(slots)`` with the packed argument block."""

    def __init__(self, compiled: Compiled, on: Device, error: build.Failure) -> None:
        """``error`` words a failed check."""
        self.compiled, self.facts, self.on, self.error = compiled, compiled.facts, on, error
        self.first = next((k for k, s in enumerate(self.facts.slots) if s.kind != "pointer"), 0)
        kinds = [slot.kind for slot in self.facts.slots]
        self.sizes = compiled.deciding()
        # Each call brings the other numbers along.
        free = [k for k, kind in enumerate(kinds) if kind != "pointer" and k not in self.sizes]
        self.free = bool(free)
        ends = [-1, *free, len(kinds)]
        self.fixed = [slice(8 * (a + 1), 8 * b) for a, b in pairwise(ends) if a + 1 < b]
        self.choice: Choice | None = None  # of the last new sizes and numbers
        self.launches: dict[bytes, Launch | None] = {}
        self.bindings: dict[tuple[Any, ...], Binding] = {}
        self.ready: dict[bytes, Ready] = {}
        self.epoch = on.epoch
        self.brought = b"", 0, b""  # arguments, parts, and what "params" had
        self.alone = own_users()  # users of a storage that nothing else reads or writes

    def __call__(self, slots: bytes) -> None:
        on = self.on
        with on.lock:
            ready = self.ready.get(self._fixed(slots) if self.free else slots)
            if ready is None or ready.epoch != on.buffers.epoch:
                self._anew(slots)
                return
            # In a line, as most calls are such: what ran before, where all is still on the device.
            for reference, storage, _ in ready.homes:
                home = reference()
                if (home is None or home.newest is HOST or home.pinned
                        or users(storage) > self.alone):  # fmt: skip
                    self._anew(slots)
                    return
            binding = ready.binding
            on.run(binding.stages, self._words(binding, slots) if self.free else b"")
            for reference, _, writes in ready.homes:
                if writes and (home := reference()) is not None:
                    home.newest = DEVICE
            if binding.checked:
                on.later(self.record, self._check)

    def _fixed(self, slots: bytes) -> bytes:
        """Words that buffers and grids depend on."""
        return b"".join([slots[part] for part in self.fixed]) if self.free else slots

    def _run(self, binding: Binding, written: Sequence[Home], slots: bytes) -> None:
        self.on.run(binding.stages, self._words(binding, slots) if self.free else b"")
        for home in written:
            home.newest = DEVICE

    def _words(self, binding: Binding, slots: bytes) -> bytes:
        """The numbers that a call brings along: the last ones, where it is the last call again."""
        if self.brought[:2] != (slots, binding.parts):
            self.brought = slots, binding.parts, self.compiled.words(slots, binding.parts)
        return self.brought[2]

    def _anew(self, slots: bytes) -> None:
        key = self._fixed(slots)[8 * self.first :]
        sizes = b"".join([slots[8 * k : 8 * k + 8] for k in self.sizes])
        sent: dict[Home, Future[None]] = {}
        if sizes not in self.launches:
            if len(self.launches) >= _MOST_LAUNCHES:
                self.launches.clear()
            with rarely_collected, self._uploading(slots, sent):
                launch = self.launches[sizes] = self.compiled.launch(slots)
                if launch is not None:
                    self.choice = launch.choice
                    for k in range(len(launch.form.stages)):  # while buffers are filled
                        self.compiled.pipeline(launch.wanted, k, free=self.free)
        launch = self.launches[sizes]
        if launch is None:
            return
        on, form = self.on, launch.form
        buffers: dict[str, Any] = {}
        homes: dict[str, Home] = {}
        try:
            moved = sum(home.bytes for home in sent)
            moved += self._uploaded(launch, form, slots, buffers, homes)
            binding = self._binding(launch, key, slots, {**buffers, **_buffers(homes)})
            changed = {f"a{k}" for k in self.facts.changed}
            self._run(binding, [home for name, home in homes.items() if name in changed],
                      slots)  # fmt: skip
            back = self._downloaded(launch, slots, buffers)
            if log_launch.isEnabledFor(logging.DEBUG):
                log_launch.debug(
                    "%s: on %s, grid %s of %s threads, %d bytes copied there, %d back",
                    self.compiled.loop.summary.name, on.name, launch.grids[0], form.threads,
                    moved, back,
                )  # fmt: skip
            if binding.checked and (back or not homes or self.compiled.job.options.debug):
                self._check(self.record)
            elif binding.checked:
                on.later(self.record, self._check)
        finally:
            for buffer in buffers.values():
                on.give_back(buffer)
        if not buffers and homes:
            if len(self.ready) >= _MOST_BINDINGS:
                self.ready.clear()
            self.ready[self._fixed(slots)] = Ready(
                binding,
                tuple((weakref.ref(h), h.storage, n in changed) for n, h in homes.items()),
                on.epoch,
            )

    @contextlib.contextmanager
    def _uploading(self, slots: bytes, sent: dict[Home, Future[None]]) -> Generator[None]:
        """Large tensors that live on the device are copied there while their loop is compiled:
        those that come into ``sent``."""
        for k, slot in enumerate(self.facts.slots):
            if slot.kind != "pointer" or slot.arg not in self.facts.copied:
                continue
            (address,) = struct.unpack_from("<Q", slots, 8 * k)
            home = Home.by_address.get(address)
            if home is None or home in sent or home.newest is not HOST or home.bytes < _LARGE:
                continue
            if self._at_home(home):
                memory = _memory(home.address, home.bytes)
                sent[home] = self.on.upload_aside(home.buffer, memory)
        try:
            yield
        finally:
            wait(sent.values())
        for home, future in sent.items():
            future.result()
            home.newest = BOTH

    @functools.cached_property
    def record(self) -> Any:
        """The error record, 0 until a check fails."""
        made = self.on.buffer(4 * ERROR_WORDS)
        self.on.upload(made, bytes(4 * ERROR_WORDS))
        return made

    def _uploaded(
        self, launch: Launch, form: Form, slots: bytes, buffers: dict[str, Any],
        homes: dict[str, Home],
    ) -> int:  # fmt: skip
        """Finds the homes of arrays, and has ``buffers`` for the others. Gives the bytes that were
        copied."""
        on, moved = self.on, 0
        used = {name for stage in form.stages for name in stage.buffers}
        for name, slot, size, _ in launch.arrays:
            if name not in used:
                continue
            (address,) = struct.unpack_from("<Q", slots, 8 * slot)
            home = Home.by_address.get(address) if size else None
            if home is not None and self._at_home(home):
                homes[name] = home
                if home.newest is HOST:
                    on.upload(home.buffer, _memory(home.address, home.bytes))
                    home.newest = BOTH
                    moved += home.bytes
                continue
            buffers[name] = on.buffer(max(size, 4))
            if size:
                on.upload(buffers[name], _memory(address, size))
                moved += size
        return moved

    def _at_home(self, home: Home) -> bool:
        """Whether the tensor's elements may be on this device alone."""
        if not home.alone or home.on not in (None, self.on):
            home.exposed()
            return False
        if home.buffer is None:
            home.placed(self.on, self.on.buffer(max(home.bytes, 4)))
        return True

    def _binding(
        self, launch: Launch, key: bytes, slots: bytes, buffers: dict[str, Any]
    ) -> Binding:
        on = self.on
        if self.epoch != on.epoch or len(self.bindings) >= _MOST_BINDINGS:
            for old in self.bindings.values():
                for buffer in old.own:
                    on.give_back(buffer)
            self.bindings.clear()
            self.ready.clear()
            self.epoch = on.epoch
        place = (key, *((name, id(buffer)) for name, buffer in buffers.items()))
        found = self.bindings.get(place)
        if found is None:
            found = self.bindings[place] = self._bound(launch, slots, buffers)
        return found

    def _bound(self, launch: Launch, slots: bytes, buffers: dict[str, Any]) -> Binding:
        on, form = self.on, launch.form
        used = {name for stage in form.stages for name in stage.buffers}
        words = self.compiled.words(slots, launch.parts)
        own: dict[str, Any] = {}
        if not self.free:
            own["params"] = on.buffer(len(words))
            on.upload(own["params"], words)
        checked = "error" in used
        shared = {"error": self.record} if checked else {}
        if "partials" in used:
            own["partials"] = on.buffer(max(launch.words, 1) * form.word)
        stages = []
        for k, (stage, grid) in enumerate(zip(form.stages, launch.grids, strict=False)):
            pipeline = self.compiled.pipeline(launch.wanted, k, free=self.free)
            given = {**buffers, **own, **shared}
            bound = [given[n] for n in stage.buffers if n in given]
            free = len(words) if self.free else 0
            stages.append((pipeline, on.group(pipeline, bound, free), grid))
        return Binding(launch.parts, tuple(stages), tuple(own.values()), checked)

    def _downloaded(self, launch: Launch, slots: bytes, buffers: dict[str, Any]) -> int:
        back = 0
        for name, slot, size, position in launch.arrays:
            if position in self.facts.changed and size and name in buffers:
                (address,) = struct.unpack_from("<Q", slots, 8 * slot)
                self.on.read(buffers[name], address, size)
                back += size
        return back

    def _check(self, buffer: Any) -> None:
        """Looks at an error record. Raises what it says."""
        found = self.compiled.failed(self.on.words(buffer, ERROR_WORDS), self.error)
        if found is not None:
            self.on.upload(buffer, bytes(4 * ERROR_WORDS))
            raise found


def _buffers(homes: dict[str, Home]) -> dict[str, Any]:
    return {name: home.buffer for name, home in homes.items()}


def _memory(address: int, size: int) -> Any:
    """What is there, as many bytes as whole words have."""
    whole = (ctypes.c_char * size).from_address(address)
    return whole if size % 4 == 0 else bytes(whole) + bytes(-size % 4)
