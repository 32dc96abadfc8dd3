"""What PyTorch asks of an operator: ``opcheck``, ``gradcheck`` and forward mode, of a kernel with
arguments that are made for a case."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch

from weft.errors import CompileError, GradientError
from weft.frontend.parameters import annotations_of
from weft.kernel import Kernel
from weft.lang.types import NDArrayType
from weft.workbench.arguments import dtypes_of
from weft.workbench.cases import Case, as_float64, copied, outcome, same_numbers
from weft.workbench.compare import is_inexact

Make = Callable[[Case], dict[str, Any]]
Verdict = tuple[str, str]
OK, WRONG, NOT_TRIED, VARIES = "ok", "WRONG", "not tried", "varies"


def checks(kernel: Kernel, make: Make) -> list[tuple[str, Callable[[Case], Verdict]]]:
    """What is tried, and what tries it: ``make`` gives the arguments of a case."""
    return [
        ("opcheck", functools.partial(_opcheck, kernel, make)),
        ("gradient", functools.partial(_gradcheck, kernel, make, False)),
        ("forward mode", functools.partial(_gradcheck, kernel, make, True)),
    ]


def _finite(kernel: Kernel, given: dict[str, Any]) -> dict[str, Any] | None:
    """``given``, or their absolute values, where results are infinite or NaN, which PyTorch's
    checks take to differ from themselves; None where they are of these, too."""
    positive = {n: v.abs() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
                for n, v in given.items()}  # fmt: skip
    for arguments in (given, positive):
        try:
            results = outcome(kernel, kernel, copied(arguments))
        except Exception:  # what the checks tell
            return given
        if all(bool(t.isfinite().all()) for t in results.values()):
            return arguments
    return None


_NOT_FINITE = (
    NOT_TRIED,
    ("results are infinite or NaN, of absolute values, too: give arguments of which they are not"),
)


def _opcheck(kernel: Kernel, make: Make, case: Case) -> Verdict:
    arguments = _finite(kernel, make(case))
    if arguments is None:
        return _NOT_FINITE
    bound = kernel.signature.bind_partial()
    bound.arguments.update(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own tracing
            kernel.operators(copy.deepcopy(bound.args), bound.kwargs)  # makes one for these types
            torch.library.opcheck(kernel.op, bound.args, bound.kwargs)
    except CompileError as error:
        return NOT_TRIED, str(error)
    except Exception as error:  # opcheck raises of many kinds
        return WRONG, f"{type(error).__name__}: {error}"
    return OK, ""


def _in_float64(kernel: Kernel) -> Kernel:
    """``kernel``, or the same without the annotations that ask for a narrower floating dtype."""
    wide = dict(annotations_of(kernel.function))
    for parameter in kernel.parts.parameters:
        allowed = dtypes_of(parameter) or []
        if any(map(_is_inexact, allowed)) and not {torch.float64, torch.complex128} & {*allowed}:
            hint = parameter.annotation
            is_array = isinstance(hint, NDArrayType)
            wide[parameter.name] = replace(hint, dtype=None) if is_array else torch.Tensor
    old = kernel.function
    if wide == annotations_of(old) or not isinstance(old, FunctionType):
        return kernel
    function = FunctionType(old.__code__, old.__globals__, old.__name__, old.__defaults__,
                            old.__closure__)  # fmt: skip
    functools.update_wrapper(function, old)
    function.__kwdefaults__, function.__annotations__ = old.__kwdefaults__, wide
    return Kernel(function, kernel.given, f"{kernel.__name__}_in_float64", "weft")


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _gradcheck(given: Kernel, make: Make, forward: bool, case: Case) -> Verdict:
    """The derivative in float64 beside that of differences."""
    kernel = _in_float64(given)
    result, why = _differentiated(kernel, make, forward, case)
    if result != WRONG or kernel is given:
        return result, why
    return NOT_TRIED, ("annotations ask for a dtype that is too coarse for differences, and in "
                       f"float64 the text, which may name dtypes, has others: {why}")  # fmt: skip


def _differentiated(kernel: Kernel, make: Make, forward: bool, case: Case) -> Verdict:
    arguments = _finite(kernel, as_float64(make(replace(case, dtype=None))))
    if arguments is None:
        return _NOT_FINITE
    hints = {p.name: p.annotation for p in kernel.parts.parameters}
    cut = {n for n, h in hints.items() if isinstance(h, NDArrayType) and h.needs_grad is False}
    tensors = {n: v for n, v in arguments.items() if isinstance(v, torch.Tensor) and n not in cut}
    floats = [n for n, v in tensors.items() if is_inexact(v)]

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = {**arguments, **dict(zip(floats, inputs, strict=True))}
        given |= {n: given[n].clone() for n in kernel.mutated if isinstance(given[n], torch.Tensor)}
        bound = kernel.signature.bind_partial()
        bound.arguments.update(given)
        with same_numbers():
            result = kernel(*bound.args, **bound.kwargs)
        made = [*(result if isinstance(result, tuple | list) else [result]),
                *(given[n] for n in given if n in kernel.mutated)]  # fmt: skip
        return tuple(t for t in made if is_inexact(t))

    inputs = [arguments[n].clone().requires_grad_() for n in floats]
    try:
        asked = [t for t in call(*inputs) if t.requires_grad] if floats else []
        if not asked:
            return NOT_TRIED, "no result depends on floating-point tensors that have a gradient"
        coarse = next((t.dtype for t in asked if t.dtype.to_real() is not torch.float64), None)
        if coarse is not None:
            dtype = str(coarse).removeprefix("torch.")
            return NOT_TRIED, (f"results are {dtype} where arguments are float64: too coarse for "
                               "differences; make them of an argument's dtype")  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.autograd.gradcheck(
                call, inputs, nondet_tol=1e-9, check_forward_ad=forward,
                check_backward_ad=not forward, check_batched_grad=False,
                check_undefined_grad=not forward,
            )  # fmt: skip
    except (GradientError, CompileError) as error:
        return NOT_TRIED, str(error)
    except Exception as error:  # gradcheck raises of several kinds
        return WRONG, f"{type(error).__name__}: {error}"
    return OK, ""
