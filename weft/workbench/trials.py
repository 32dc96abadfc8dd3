"""What is tried with a case: the compiled kernel beside its Python, with checks, and again."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import torch

from weft.errors import CompileError, KernelIndexError, RaceError
from weft.kernel import Kernel
from weft.pytorch.identity import may_draw, text_of
from weft.values import mutable
from weft.workbench import compare
from weft.workbench.arguments import Maker
from weft.workbench.cases import Case, as_float64, build, copied, filled_memory, outcome
from weft.workbench.operator_checks import NOT_TRIED, OK, VARIES, WRONG, Verdict

_PYTHON_SECONDS = 3.0  # that one run of the Python may take
_COMPILED = 1e-8  # that compiled code with checks takes for an operation or byte
_GROWTH = 50  # of the work from one size to the next, in three nested loops
_UNORDERED = (
    "bits differ from run to run: sums go in any order; torch.use_deterministic_algorithms(True) "
    "gives them one"
)


@mutable
class Trials:
    """Of one kernel, or of another function in its place (``call``, which errors call ``subject``),
    with arguments that ``maker`` makes. ``oracle``, on the device ``where``, stands for the Python.
    ``patience``: seconds that one run of the Python may take; ``rate``: that it takes for one
    operation or byte, which are counted if ``counts``. ``first``: the first element that differs is
    told, not the one that is off most. ``applies``: says which calls ``call`` is for, if not all;
    ``fills``: it is called again where memory that it asks for holds NaN."""

    kernel: Kernel
    maker: Maker
    call: Callable[..., Any]
    rate: float = 3e-5
    begun: bool = False  # whether there was a comparison
    patience: float = _PYTHON_SECONDS
    oracle: Callable[..., Any] | None = None
    where: str = "cpu"
    subject: str = "the kernel"
    first: bool = False
    counts: bool = True
    applies: Callable[..., bool] | None = None
    fills: bool = True
    left: list[dict[str, int]] = field(default_factory=list)  # sizes that would take too long

    @property
    def too_long(self) -> str:
        return f"the Python would take more than {self.patience:g} seconds"

    def takes_longer(self, case: Case) -> bool:
        """Whether the Python would take no less than with sizes for which it would take too long:
        arguments of such sizes are not even made."""
        sizes = dict(case.sizes)
        return any(all(sizes[name] >= n for name, n in one.items()) for one in self.left)

    def arguments(self, case: Case) -> dict[str, Any]:
        return build(self.maker, case, self.kernel.mutated)

    def compared(self, case: Case) -> Verdict:
        """The result, and why: the kernel beside its Python."""
        arguments = self.arguments(case)
        if not self.takes(arguments, case.device):
            return NOT_TRIED, f"{self.subject} is not for such arguments"
        if case.device != self.where and may_draw(text_of(self.kernel.source)):
            return NOT_TRIED, f"it draws random numbers, and those of {case.device} are others"
        work = self._work(arguments)
        if work * self.rate > self.patience:
            self.left.append(dict(case.sizes))
            return NOT_TRIED, self.too_long
        begin = time.thread_time()  # whatever else the machine does
        expected, why = self.python(arguments)
        took = time.thread_time() - begin
        if work > 1000:  # less is what any call takes
            self.rate = took / work
        first, self.begun = not self.begun, True
        if expected is None:
            return (WRONG if self._promised(why[0], first) else NOT_TRIED), why[1]
        return self.beside(arguments, expected, case.device, case.dtype is None)

    def beside(
        self, arguments: dict[str, Any], expected: dict[str, torch.Tensor], device: str,
        promised: bool = True,
    ) -> Verdict:  # fmt: skip
        """The result, and why: a call beside what is ``expected`` of it. ``promised``: the kernel
        takes such arguments."""
        difference, why = None, ""
        for memory in (contextlib.nullcontext, filled_memory) if self.fills else (filled_memory,):
            try:
                with memory():
                    found = outcome(self.kernel, self.call, copied(arguments, device))
            except CompileError as error:
                return (WRONG if promised else NOT_TRIED), f"refused: {told(error)}"
            except Exception as error:  # whatever the call raises and the Python does not
                return WRONG, f"the Python runs, and {self.subject} raises {told(error)}"
            difference = self._difference(arguments, expected, found)
            if difference is not None:
                return WRONG, f"{why}{difference}"
            why = "where fresh memory holds NaN, "
        return OK, ""

    def takes(self, arguments: dict[str, Any], device: str) -> bool:
        """Whether ``call`` is for such arguments."""
        if self.applies is None:
            return True
        bound = self.kernel.signature.bind_partial()
        bound.arguments.update(copied(arguments, device))
        return self.applies(*bound.args, **bound.kwargs)

    def seconds(self, arguments: dict[str, Any]) -> float:
        """What the Python may take for these arguments."""
        return self._work(arguments) * self.rate

    def quick(self, case: Case, larger: Sequence[Case]) -> Case:
        """The last of the ``larger`` cases that compiled code carries out in a moment, with checks;
        ``case`` if there is none."""
        for other in larger:
            try:
                if self._work(self.arguments(case)) * _GROWTH * _COMPILED > self.patience or (
                    self._work(self.arguments(other)) * _COMPILED > self.patience
                ):
                    return case
            except Exception:  # the sizes are not what the arguments' maker can do
                return case
            case = other
        return case

    def _work(self, arguments: dict[str, Any]) -> float:
        """What the time of the Python goes by: operations and bytes, as far as they are known."""
        elements = sum(v.numel() for v in arguments.values() if isinstance(v, torch.Tensor))
        if not self.counts:
            return max(elements, 1) ** 1.5
        hollow = {n: v.to("meta") if isinstance(v, torch.Tensor) else v
                  for n, v in arguments.items()}  # fmt: skip
        bound = self.kernel.signature.bind_partial()
        bound.arguments.update(hollow)
        try:  # of tensors without elements nothing is carried out: nobody has checked them yet
            cost = self.kernel.cost(*bound.args, **bound.kwargs)
        except Exception:  # cannot be counted, or not without elements
            return max(elements, 1) ** 1.5
        return max(cost.flops + cost.bytes, elements, 1)

    def python(self, arguments: dict[str, Any]) -> tuple[Any, tuple[Exception | None, str]]:
        """What the Python computes; or None, and what it raised."""
        try:
            with filled_memory():
                run = self.oracle or self.kernel.interpret
                found = outcome(self.kernel, run, copied(arguments, self.where))
        except Exception as error:  # whatever a person's function raises
            return None, (error, f"the Python itself: {told(error)}")
        return found, (None, "")

    def _promised(self, error: Exception | None, first: bool) -> bool:
        """Whether what the Python raised is a mistake of the kernel, and not of its arguments, of
        which the ``first`` are the most likely to fit."""
        return isinstance(error, RaceError) or (
            isinstance(error, KernelIndexError) and (self.maker.promised or first)
        )

    def _difference(
        self, arguments: dict[str, Any], expected: dict[str, torch.Tensor],
        found: dict[str, torch.Tensor],
    ) -> compare.Difference | None:  # fmt: skip
        dtypes = [v.dtype for v in (*arguments.values(), *expected.values())
                  if isinstance(v, torch.Tensor)]  # fmt: skip
        most = compare.tolerance(*dtypes)
        if expected.keys() != found.keys():
            return compare.Difference("results", f"{[*found]} in place of {[*expected]}")
        noisy = functools.cache(lambda: self._noisy(arguments, compare.noise_of(*dtypes)))
        for name, value in expected.items():
            other = found[name]
            if value.size() != other.size():
                text = f"shape {list(other.size())} in place of {list(value.size())}"
                return compare.Difference(name, text)
            if value.dim() and value.dtype is not other.dtype:  # the Python's numbers have others
                return compare.Difference(name, f"{other.dtype} in place of {value.dtype}")
            good = compare.close(value, other, most)
            if not good.all() and noisy():
                exact, *moved = (run[name] for run in noisy())
                good |= compare.allowed(exact, moved, other, most)
            if not good.all():
                most_off = compare.described(name, value, other, good, self.first)
                return compare.Difference(name, most_off.text + unwritten(value, good))
        return None

    def _noisy(self, arguments: dict[str, Any], amount: float) -> list[dict[str, torch.Tensor]]:
        """What the Python computes in float64, as it is and with noise on what it reads."""
        generator = torch.Generator().manual_seed(1)
        exact = as_float64(arguments)
        runs = [exact]
        for scale in (1.0, -1.7, 0.6, -2.6):  # some may be close by chance
            runs.append({n: compare.with_noise(v, scale * amount, generator)
                         if compare.is_inexact(v)
                         else v * (1 + scale * amount) if isinstance(v, float) else v
                         for n, v in exact.items()})  # fmt: skip
        results = [self.python(run)[0] for run in runs]
        return [] if any(r is None for r in results) else results

    def sound(self, trial: Callable[[Case], Verdict], case: Case) -> Verdict:
        """What ``trial`` says of arguments with which the Python runs: compiled code checks no
        subscripts."""
        expected, why = self.python(self.arguments(case))
        return trial(case) if expected is not None else (NOT_TRIED, why[1])

    def debugged(self, case: Case) -> Verdict:
        """A call of the kernel with every subscript, and races that are not decided, checked."""
        arguments = self.arguments(case)
        checking = self.kernel.changed({"debug": True})
        try:
            outcome(self.kernel, checking, copied(arguments))
        except (KernelIndexError, RaceError) as error:
            return WRONG, told(error)
        except CompileError as error:
            return WRONG, f"refused: {told(error)}"
        return OK, ""

    def repeated(self, case: Case) -> Verdict:
        """Whether five calls give the same bits."""
        arguments = self.arguments(case)
        runs: list[dict[str, torch.Tensor]] = []
        try:
            outcome(self.kernel, self.kernel.changed({"debug": True}), copied(arguments))
            for _ in range(5):
                runs.append(outcome(self.kernel, self.call, copied(arguments, case.device)))
        except Exception as error:  # of subscripts, or told by the comparison
            return NOT_TRIED, told(error)
        for name, first in runs[0].items():
            if any(not torch.equal(bits(first), bits(run[name])) for run in runs[1:]):
                return VARIES, f"{name}: {_UNORDERED}"
        return OK, ""


def unwritten(expected: torch.Tensor, good: torch.Tensor) -> str:
    """A hint where the Python leaves elements as the memory was that it got (see
    ``filled_memory``)."""
    odd = expected.isnan() if expected.is_floating_point() else expected == _largest(expected.dtype)
    return ": does the kernel write every element?" if bool((odd & ~good).any()) else ""


def _largest(dtype: torch.dtype) -> int:
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max


def bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8) if value.numel() else value


def told(error: Exception) -> str:
    text = str(error) if isinstance(error, CompileError) else f"{type(error).__name__}: {error}"
    return text.strip()
