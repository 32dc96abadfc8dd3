"""``weft check``: a kernel against its undecorated Python, and against what PyTorch asks of an
operator."""

from __future__ import annotations

import functools
import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import Any

import torch

from weft.errors import CompileError
from weft.frames import user_frames
from weft.kernel import Kernel, kernel_inside
from weft.tuning.measure import shown as progress
from weft.values import frozen, mutable
from weft.workbench import operator_checks
from weft.workbench.arguments import Maker, dtypes_of, maker_of
from weft.workbench.cases import (
    LAYOUTS,
    Case,
    copied,
    outcome,
    shapes,
    special_cases,
)
from weft.workbench.operator_checks import NOT_TRIED, OK, VARIES, WRONG, Verdict
from weft.workbench.report import Table, UsageError
from weft.workbench.shrink import as_python, shrunk
from weft.workbench.trials import Trials, told

_ODD = (1, 2, 3)
_SHOWN = 4  # reasons of one kind that are told in full
Try = Callable[[Case], Verdict]
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@frozen
class Trial:
    """One thing that was tried: ``arguments`` in words, the result ("ok", "WRONG", "varies" or
    "not tried"), and why."""

    what: str
    arguments: str
    result: str = OK
    why: str = ""


@frozen
class Check:
    """What ``weft.check`` found. ``program``: Python that shows the first difference, with the
    smallest arguments that were found to; "" where there is none."""

    kernel: str
    trials: tuple[Trial, ...]
    program: str = ""

    @property
    def ok(self) -> bool:
        """Whether something was tried and nothing was wrong."""
        results = [trial.result for trial in self.trials]
        return OK in results and WRONG not in results

    def __str__(self) -> str:
        rows = tuple((t.result, t.what, t.arguments) for t in self.trials)
        parts = [f"{self.kernel}\n\n{Table(('result', 'tried', 'arguments'), rows)}"]
        known: set[str] = set()
        for result in (WRONG, VARIES, NOT_TRIED):
            told: dict[str, tuple[str, dict[str, None]]] = {}  # by kind, a reason and what it is of
            for trial in (t for t in self.trials if t.result == result):
                told.setdefault(_kind(trial.why), (trial.why, {}))[1][trial.what] = None
            whys: list[str] = []
            for kind, (why, whats) in told.items():
                first, *rest = whats if result == WRONG else [", ".join(whats)]
                whys.append(f"{result}: {first}: {'likewise' if kind in known else why}"
                            + (f"\nlikewise: {', '.join(rest)}" if rest else ""))  # fmt: skip
            known |= {*told}
            more = [f"{result}: {len(whys) - _SHOWN} more"] if len(whys) > _SHOWN else []
            parts += ["\n".join(whys[:_SHOWN] + more)] if whys else []
        if self.program:
            parts.append(f"This shows it:\n\n{self.program}".rstrip())
        return "\n\n".join(parts)

    __repr__ = __str__

    def data(self) -> dict[str, Any]:
        trials = [{name: getattr(t, name) for name in Trial.__match_args__} for t in self.trials]
        return {"kernel": self.kernel, "trials": trials, "program": self.program}


def _kind(why: str) -> str:
    """``why`` without its numbers, but for those of lines: which elements differ, and which
    iterations meet, is told of the first alone."""
    text = why.removeprefix("the Python itself: ")
    return re.sub(r"(?<![\w:])-?\d+(\.\d+)?(e[+-]?\d+)?", "#", text)


@user_frames
def check(
    kernel: Any, *args: Any, against: Callable[..., Any] | None = None, implementation: str = "",
    seconds: float = 60.0, names: dict[str, Any] | None = None, **kwargs: Any,
) -> Check:  # fmt: skip
    """Tries a kernel with many arguments, and compares all that it computes with what its
    undecorated Python does, in which bounds and races are checked.

    Sizes 1, 2, 3, 17 and 0, elements with gaps, transposed, behind an offset and expanded, every
    floating dtype, infinities and NaN; whether two runs give the same bits;
    ``torch.library.opcheck``, ``torch.autograd.gradcheck``; on the GPU, too, where there is one.
    Arguments are cut out of ``args`` and ``kwargs``. Without any, they are made by the function
    ``NAME_arguments`` of the kernel's module (or ``names``), whose parameters are sizes, or from
    annotations such as ``Float[Tensor, "b c t"]``. ``against``: another function that should
    compute the same is tried in place of the compiled kernel; ``implementation``: the one of that
    name (see ``Kernel.implementation``), on its device, with what it is for. What is begun within
    ``seconds`` is finished. A result may be off by what rounding amounts to. Raises ``UsageError``
    where no arguments can be made, and ``KernelTypeError`` for what is no kernel.
    """
    inner = kernel_inside(kernel)
    if inner is None:
        raise UsageError(f"weft.check takes a kernel, not {type(kernel).__name__}\n"
                         "help: decorate the function with @weft.kernel")  # fmt: skip
    scope = getattr(inner.function, "__globals__", {}) if names is None else names
    maker = maker_of(inner, args, kwargs, scope)
    if implementation:
        return _of_implementation(inner, implementation, maker, bool(args or kwargs), seconds)
    trials = Trials(inner, maker, against or inner)
    session = Session(trials, bool(args or kwargs), seconds)
    return session.run(operators=against is None)


def _of_implementation(
    kernel: Kernel, name: str, maker: Maker, given: bool, seconds: float
) -> Check:
    """The same of the implementation called ``name``."""
    others: Any = kernel.implementations
    found = {one.name: one for one in others.registered} if others else {}
    if name not in found:
        raise UsageError(f"{kernel.__name__} has no implementation {name!r}\n"
                         f"help: it has {', '.join(found) or 'none'}")  # fmt: skip
    one = found[name]
    if one.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"{name} is for a GPU, and there is none here")
    device = torch.empty(0, device=one.device).device
    compared = others.verification(one, device)
    trials = Trials(others.loop, maker, compared.observed, subject=f"`{name}`", fills=False,
                    applies=compared.applies)  # fmt: skip
    return Session(trials, given, seconds, str(device), one.finite).run(operators=False)


@mutable
class Session:
    """``device``: where all is tried, if not on each; ``finite``: no infinities and NaN are;
    ``found``: what was tried so far."""

    trials: Trials
    given: bool
    seconds: float
    device: str = ""
    finite: bool = False
    found: list[Trial] = field(default_factory=list)
    first: tuple[Case, str] | None = None  # that is wrong, and how

    @property
    def kernel(self) -> Kernel:
        return self.trials.kernel

    @property
    def maker(self) -> Maker:
        return self.trials.maker

    def run(self, operators: bool) -> Check:
        base = self._base()
        why = self._refused(base)
        if why:
            trials = (Trial("small sizes", shapes(self.trials.arguments(base)), WRONG, why),)
            return Check(self.kernel.__name__, trials)
        todo = [*self._comparisons(base)]
        if operators:  # before larger sizes, for which there may be no time
            asked = operator_checks.checks(self.kernel, self.trials.arguments)
            todo += [
                (what, base, functools.partial(self.trials.sound, trial)) for what, trial in asked
            ]
        todo += self._larger(base)
        end = time.perf_counter() + self.seconds
        for what, case, trial in progress(todo, len(todo), f"checking {self.kernel.__name__}"):
            if self.found and time.perf_counter() > end:
                why = f"{self.seconds:g} seconds are over (--seconds)"
                self.found.append(Trial(what, "", NOT_TRIED, why))
                continue
            self._try(what, case, trial)
        tried = [trial for trial in self.found if trial.result != NOT_TRIED]
        if not tried:
            raise UsageError(
                f"no arguments fit {self.kernel.__name__}: {self.found[0].why}\nhelp: give some: "
                f"--args 'torch.randn(8, 3), 2', or a function {self.kernel.__name__}_arguments() "
                "beside it"
            )
        return Check(self.kernel.__name__, tuple(self.found), self._program())

    def _refused(self, base: Case) -> str:
        """Why the kernel cannot be compiled at all; "" where it can. Nothing else is tried then."""
        if self.device:  # for which conditions say what is taken
            return ""
        try:
            arguments = self.trials.arguments(base)
            if self.trials.python(arguments)[0] is not None:
                outcome(self.kernel, self.trials.call, copied(arguments))
        except CompileError as error:
            return f"refused: {told(error)}"
        except Exception:  # what the trials tell
            return ""
        return ""

    def _base(self) -> Case:
        """Small sizes, unlike each other where they may be."""
        few = itertools.cycle((3, 2, 5, 4, 7))
        small = ((n, min(k, next(few)) if k > 7 else k) for n, k in self.maker.sizes.items())
        return Case(tuple(small), device=self.device or "cpu")

    def _comparisons(self, base: Case) -> Iterator[tuple[str, Case, Try]]:
        compared = self._compared
        yield compared("small sizes", base)
        for case in self._sizes(base):
            yield compared("sizes", case)
        for layout in LAYOUTS:
            yield compared(layout, replace(base, layout=layout))
        for name, _ in base.sizes:
            yield compared("empty", base.resized(**{name: 0}))
        for dtype in self._dtypes():
            yield compared(str(dtype).removeprefix("torch."), replace(base, dtype=dtype))
        for case in special_cases(self.maker) if not self.finite else ():
            yield compared("infinities, NaN", replace(case, device=base.device))
        yield compared("zeros", replace(base, values="zero"))

    def _compared(self, what: str, case: Case) -> tuple[str, Case, Try]:
        return what, case, self.trials.compared

    def _larger(self, base: Case) -> Iterator[tuple[str, Case, Try]]:
        """Larger sizes, what goes by them, and the GPU."""
        compared = self._compared
        for case in self._large(base):
            yield compared("larger sizes", case)
        if self.given and not self.device:
            full = Case(tuple(self.maker.sizes.items()))
            yield "as given, bounds and races", full, self.trials.debugged
        most = self.maker.most
        larger = [base.resized(**{n: min(k, most.get(n, k)) for n, _ in base.sizes})
                  for k in (17, 61)]  # fmt: skip
        large = self.trials.quick(base, larger)
        yield "same bits again", large, self.trials.repeated
        if torch.cuda.is_available() and not self.device:
            for case in (base, *self._sizes(base), *self._large(base)):
                yield compared("cuda", replace(case, device="cuda"))
            for dtype in self._dtypes():
                yield compared(f"cuda, {str(dtype).removeprefix('torch.')}",
                               replace(base, device="cuda", dtype=dtype))  # fmt: skip
            for layout in LAYOUTS:
                yield compared(f"cuda, {layout}", replace(base, device="cuda", layout=layout))
            yield "cuda, same bits again", replace(large, device="cuda"), self.trials.repeated

    def _sizes(self, base: Case) -> list[Case]:
        """Odd sizes: of all at once, and of each by itself; and odd ones with 0 and 1 for each
        whole number, which need not be a size: a flag, a colour of a checkerboard."""
        most = self.maker.most
        cases = [base.resized(**{n: min(k, most.get(n, k)) for n, _ in base.sizes}) for k in _ODD]
        for name, _ in base.sizes:
            cases += [base.resized(**{name: min(k, most.get(name, k))}) for k in (1, 17)]
        odd = {n: min(3, most.get(n, 3)) for n, _ in base.sizes}
        numbers = [p.name for p in self.kernel.parts.parameters if p.kind == "int"]
        cases += [base.resized(**{**odd, n: k}) for n in numbers if n in odd for k in (0, 1)]
        return [c for c in dict.fromkeys(cases) if c != base]

    def _large(self, base: Case) -> list[Case]:
        """17 of all, 127 of each: where the Python does not take too long."""
        most = self.maker.most
        cases = [base.resized(**{n: min(17, most.get(n, 17)) for n, _ in base.sizes})]
        cases += [base.resized(**{n: min(127, most.get(n, 127))}) for n, _ in base.sizes]
        return [c for c in dict.fromkeys(cases) if c not in (base, *self._sizes(base))]

    def _dtypes(self) -> list[torch.dtype]:
        """The floating dtypes that annotations leave open."""
        parameters = {p.name: p for p in self.kernel.parts.parameters}
        floats = [n for n, v in self.trials.arguments(self._base()).items()
                  if isinstance(v, torch.Tensor) and v.is_floating_point()]  # fmt: skip
        allowed = [dtypes_of(parameters[n]) for n in floats if n in parameters]
        return [d for d in _FLOATS if floats and all(a is None or d in a for a in allowed)]

    # --- trying ----------------------------------------------------------------------------------
    def _try(self, what: str, case: Case, trial: Try) -> None:
        if trial == self.trials.compared and self.trials.takes_longer(case):
            self.found.append(Trial(what, "", NOT_TRIED, self.trials.too_long))
            return
        try:
            arguments = self.trials.arguments(case)
        except Exception as error:  # the sizes are not what the arguments' maker can do
            self.found.append(Trial(what, "", NOT_TRIED, told(error)))
            return
        result, why = trial(case)
        self.found.append(Trial(what, shapes(arguments), result, why))
        if result == WRONG and self.first is None and trial == self.trials.compared:
            self.first = case, why

    def _program(self) -> str:
        if self.first is None:
            return ""
        case, seen = self.first

        def fails(smaller: Case) -> bool:
            try:
                return self.trials.compared(smaller)[0] == WRONG
            except Exception:  # arguments that cannot be made: no case of this
                return False

        case = shrunk(case, fails)
        arguments = self.trials.arguments(case)
        expected, _ = self.trials.python(arguments)
        why = self.trials.compared(case)[1]
        return as_python(self.kernel, arguments, case.device, [*(expected or {})], why or seen)
