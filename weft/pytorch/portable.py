"""What a call of an operator does, written down for a library, which other processes load: with
code that is in no process, for a CPU or GPU that need not be here.

A call on a GPU is written down twice: for the sizes of the example, by the schedule that these
choose, and for any sizes, by the schedule that has no conditions.
"""

from __future__ import annotations

import copy
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from weft import compiler
from weft.codegen import caches
from weft.codegen.boxed_forms import (
    ANY,
    CPU,
    CUDA,
    CURRENT,
    Form,
    NumberForm,
    RunForm,
    Size,
    TensorForm,
)
from weft.codegen.exported import Ptx
from weft.codegen.interface import Slot
from weft.errors import KernelValueError
from weft.frontend.scope import Guard
from weft.frontend.specs import TensorSpec
from weft.pytorch.boxed_program import Operand, Program, Unfit, word
from weft.runtime.arguments import sizes_of
from weft.runtime.build import Job, Made
from weft.runtime.function import packed
from weft.schedule.choose import Choice, alignments, candidate, choose
from weft.schedule.grid import THREADS, grid, left_by
from weft.schedule.language import Bind, Block, FastDivision, only, several
from weft.schedule.machine import GpuMachine
from weft.schedule.nest import Nest

# pyright: reportPrivateUsage=false
_UNKNOWN = 100  # in place of a size that no trace knows
_MOST = (2**31 - 1, 65535, 65535)  # blocks of a grid


class Codes:
    """The machine code of a library: ``cpu``, one of ``machine.LEVELS`` or "" for this machine's;
    ``arch``: that of the GPU, if the library is for one."""

    def __init__(self, cpu: str, arch: str) -> None:
        self.cpu, self.arch = cpu, arch
        self.objects: list[bytes] = []
        self._made = dict[Any, Any]()

    def of_cpu(self, job: Job) -> tuple[str, tuple[Slot, ...]]:
        """The symbol of a loop, and the words of its argument block. Raises ``Unfit``."""
        found = self._made.get(job.loop.digest)
        if found is None:
            function = copy.copy(job.loop.function)
            function.name = f"{function.name}_{len(self.objects)}"
            asked = job.options.asked("cpu", job.loop.summary.name)
            limit = job.options.streaming_bytes
            if limit is None:
                limit = caches.USUAL if self.cpu else caches.last_level()
            found = compiler.to_code(
                function, job.options, noalias=job.noalias, asked=asked, made_for=self.cpu,
                streaming_beyond=limit,
            )  # fmt: skip
            if found.checks or found.prints:
                raise Unfit
            self._made[job.loop.digest] = found
            self.objects.append(found.object)
        return found.symbol, found.slots


class Portable(Program):
    """``arch``: of the GPU that the call is on, if it is on one. ``loose``: the call is one of
    those with any strides. ``exact``: one of those with these sizes. All tensors are on "meta"."""

    places = frozenset({"meta"})
    loops = "none"

    def __init__(
        self, passed: Sequence[Any], types: Sequence[str], codes: Codes, *, loose: bool, exact: bool
    ) -> None:
        super().__init__(passed, types, exact=exact)
        self.made_by, self.loose = codes, loose
        if not codes.arch:
            self.cpu = torch.device("meta")
        self.ran: list[str | Ptx] = []

    def _tensor(self, tensor: torch.Tensor, spec: TensorSpec, *, written: bool) -> TensorForm:
        form = super()._tensor(tensor, spec, written=written)
        if not self.loose or spec.rank == 0:
            return form
        if spec.layout != "strided":
            raise Unfit  # the code would not look at all strides
        return replace(form, layout=ANY)

    def as_made(self, tensor: torch.Tensor) -> torch.Tensor:
        return example(tensor, loose=self.loose)

    def take_rest(self) -> None:
        for k, value in enumerate(self.items):
            if isinstance(value, torch.device):  # as the tensors' in all but the index
                first = (CUDA if self.made_by.arch else CPU) << 32
                self.arguments[k] = NumberForm(first, first | 0xFFFFFFFF)
        super().take_rest()

    def like(self, position: int, tensor: torch.Tensor, **how: Any) -> int:
        if not self.loose:
            return super().like(position, tensor, **how)
        made = self.make(tensor, sizes=(), strides=(), **how)
        self.made[-1] = replace(self.made[-1], like=position)
        return made

    def run(self, compiled: Made, operands: Sequence[Operand], values: Sequence[Any]) -> None:
        job = compiled.job
        _refuse_shader(job)
        if self.made_by.arch:
            self._launches(job, operands, values)
            return
        symbol, slots = self.made_by.of_cpu(job)
        self.runs.append(RunForm(tuple(word(slot, operands) for slot in slots)))
        self.ran.append(symbol)

    def _launches(self, job: Job, operands: Sequence[Operand], values: Sequence[Any]) -> None:
        from weft.codegen import cuda, launching  # for libraries of GPUs

        arch, noalias = self.made_by.arch, job.noalias
        asked = job.options.asked("cuda", job.loop.summary.name)
        function = compiler.optimize(job.loop.function, job.options, noalias=noalias, asked=asked)
        facts = cuda.analyse(function, asked)
        if facts.checks or facts.prints:
            raise Unfit
        slots = tuple(word(slot, operands) for slot in facts.slots)
        block, _ = packed(facts.slots, values)
        places = {facts.nest.arrays[slot.arg]: k for k, slot in enumerate(facts.slots)
                  if slot.kind == "pointer"}  # fmt: skip
        pairs = [(guard.array, guard.bytes) for guard in alignments(facts.candidates)]
        if not self.exact:
            pairs = []
        sizes = sizes_of(facts, job.loop.summary.types, block, frozenset(pairs))
        able = int(arch.removeprefix("sm_"))
        machine = GpuMachine(clusters=able >= 90, copies=able >= 80)
        if self.exact:
            if 0 in sizes.trips:
                raise Unfit  # sizes for which there is nothing to choose
            choice = choose(facts.candidates, sizes, machine, THREADS)
            used = {int(step[1]) for step in facts.nest.program if step[0] == "slot"}
            for k, slot in enumerate(facts.slots):
                if slot.kind == "int" and k in used and slots[k].kind == "int":
                    self.fix(slots[k].arg, struct.unpack_from("<q", block, 8 * k)[0])
        else:
            schedule = candidate(facts.candidates[-1]).schedule
            choice = Choice(schedule, *grid(schedule, sizes, machine, THREADS), 0)
            if not all(isinstance(step, Bind | Block) for step in schedule):
                raise Unfit
        text = cuda.compile_cuda(function, choice.schedule, arch).ptx
        names = launching.entries(text)
        divisors = sizes.divisors if only(choice.schedule, FastDivision) else b""
        rest = [Slot("constant", n) for (n,) in struct.iter_unpack("<q", divisors)]
        tail = [Slot("constant", 0), Slot("constant", 1)]
        stages = [(choice.grid, choice.block)]
        left = left_by(choice.schedule, choice.grid, choice.block, sizes)
        if left is not None:
            room = torch.empty(left.words, dtype=torch.int64, device="meta")
            loose, self.loose = self.loose, False  # it is as it is made
            tail = [Slot("pointer", self.make(room)), Slot("constant", left.parts)]
            self.loose = loose
            stages += [stages[0]] * (len(names) - 2) + [left.last]
        covering = () if self.exact or left is not None else _covering(facts.nest, choice, slots)
        aligned = tuple((places[name], bytes) for name, bytes in pairs)
        for k, (name, dims) in enumerate(zip(names, stages, strict=True)):
            sides, shared = (*dims[0], *dims[1]), choice.shared if k == 0 else 0
            if covering:
                sides = (*_MOST[: len(covering)], *[1] * (3 - len(covering)), *dims[1])
            run = RunForm((*slots, *tail, *rest), (*sides, shared), aligned, covering)
            self.runs.append(run)
            self.ran.append(Ptx(text, name))

    def form(
        self, returned: Sequence[int], guards: Sequence[Guard], *, listed: bool = False
    ) -> Form:
        made = super().form(returned, (), listed=listed)
        return replace(made, device=(CUDA, CURRENT) if self.made_by.arch else (CPU, 0))


def _covering(
    nest: Nest, choice: Choice, slots: Sequence[Slot]
) -> tuple[tuple[Size, Size, int, int], ...]:
    """How many blocks each axis needs; nothing where that is no plain arithmetic of sizes."""
    binds = several(choice.schedule, Bind)
    if [bind.side for bind in binds] != ["x", "y", "z"][: len(binds)]:
        return ()
    found: list[tuple[Size, Size, int, int]] = []
    for bind, threads in zip(binds, choice.block, strict=False):
        bounds = [_size(nest, part, slots) for part in nest.bounds[nest.axes.index(bind.axis)]]
        low, high, step = bounds
        known = isinstance(step, Slot) and step.kind == "constant" and step.arg >= 1
        if low is None or high is None or not isinstance(step, Slot) or not known:
            return ()
        found.append((low, high, step.arg, threads))
    return tuple(found)


def _size(nest: Nest, number: int, slots: Sequence[Slot]) -> Size | None:
    """A step of a nest's program, of the words of a call."""
    operation, *operands = nest.program[number]
    match operation:
        case "const":
            return Slot("constant", int(operands[0]))
        case "slot":
            return slots[int(operands[0])]
        case "add" | "sub" | "mul":
            first, second = (_size(nest, int(k), slots) for k in operands)
            return None if first is None or second is None else (str(operation), first, second)
        case _:
            return None


def example(value: Any, *, loose: bool) -> Any:
    """An argument like this one, whose tensors are on "meta"; ``loose``: with strides of which
    nothing is known."""
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, list | tuple):
        return [_known(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return _known(value)
    sizes, strides = list(map(_known, value.size())), list(map(_known, value.stride()))
    if loose and sizes:
        sizes = [max(n, 2) for n in sizes]
        strides = [2 * math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")


def _known(value: Any) -> Any:
    """A number as it is, a symbolic one as it was where it was traced."""
    if not isinstance(value, torch.SymInt):
        return value
    hint = value.node.hint
    return _UNKNOWN if hint is None else int(hint)


def _refuse_shader(job: Job) -> None:
    """Raises ``KernelValueError`` where a loop runs as a shader."""
    if job.options.on:
        raise KernelValueError(
            f"a library has machine code, and this kernel runs on {job.options.on}",
            job.loop.function.span, help="export the kernel itself, without .on(...)",
        )  # fmt: skip
