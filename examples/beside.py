"""A kernel beside PyTorch's spelling of it: values, gradients, times. What the examples share."""

import inspect
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """``kernel`` and ``reference`` take the same ``arguments`` and give one tensor.

    A gradient is asked for with respect to every floating-point tensor among the arguments.
    ``size`` is what the table calls them.
    """

    size: str
    kernel: Callable[..., torch.Tensor]
    reference: Callable[..., torch.Tensor]
    arguments: tuple[Any, ...]


@dataclass
class Result:
    """Errors are the largest difference from the reference in float64, over its largest value;
    ``torch_error`` is that of the reference in the arguments' own dtype, gradients included.

    ``gradients`` has the errors of the kernel's gradients by parameter. Times are medians, in ms.
    """

    size: str
    error: float
    gradients: dict[str, float]
    torch_error: float
    forward: float = 0.0
    backward: float = 0.0
    torch_forward: float = 0.0
    torch_backward: float = 0.0


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def prepared(arguments: Sequence[Any], double: bool = False) -> list[Any]:
    """The arguments with floating-point tensors copied, as leaves that require a gradient."""
    return [
        (a.double() if double else a).detach().clone().requires_grad_() if is_float(a) else a
        for a in arguments
    ]


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest difference, over the largest value of ``exact`` (or as it is where that is 0)."""
    difference, largest = (found.double() - exact).abs().max().item(), exact.abs().max().item()
    return difference / (largest or 1.0)


def passes(
    function: Callable[..., torch.Tensor], arguments: list[Any], dtype: torch.dtype | None = None
) -> tuple[Any, Any]:
    """A call without arguments that goes forward, and one that goes backward through a call as the
    later ones of a training loop are. The gradient that it is given has values of ``dtype``, or of
    the result's own."""
    wanted = [a for a in arguments if is_float(a) and a.requires_grad]
    out = function(*arguments)
    generator = torch.Generator().manual_seed(1)
    given = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    given = given.to(dtype or out.dtype).to(out)
    for _ in range(2):
        torch.autograd.grad(out, wanted, given, allow_unused=True)
        out = function(*arguments)

    def forward() -> torch.Tensor:
        return function(*arguments).detach()

    def backward() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, wanted, given, retain_graph=True, materialize_grads=True)

    return forward, backward


def check(case: Case) -> Result:
    """Values and gradients of both against the reference in float64."""
    names = list(inspect.signature(case.kernel).parameters)
    floats = [n for n, a in zip(names, case.arguments, strict=True) if is_float(a)]
    errors: list[list[float]] = []
    dtype = next(a.dtype for a in case.arguments if is_float(a))
    double = prepared(case.arguments, double=True)
    exact = [step() for step in passes(case.reference, double, dtype)]
    for function in (case.kernel, case.reference):
        value, gradients = (step() for step in passes(function, prepared(case.arguments)))
        found = [relative_error(value, exact[0])]
        found += [relative_error(a, b) for a, b in zip(gradients, exact[1], strict=True)]
        errors.append(found)
    mine, theirs = errors
    return Result(case.size, mine[0], dict(zip(floats, mine[1:], strict=True)), max(theirs))


def milliseconds(call: Callable[[], Any]) -> float:
    """The time of one call."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def measure(case: Case, result: Result, rounds: int) -> None:
    """Fill the times of ``result``: medians over ``rounds``, taken in turns."""
    both = passes(case.kernel, prepared(case.arguments))
    both += passes(case.reference, prepared(case.arguments))
    samples: list[list[float]] = [[] for _ in both]
    for _ in range(rounds + 1):
        for call, taken in zip(both, samples, strict=True):
            taken.append(milliseconds(call))
    middle = [statistics.median(taken[1:]) for taken in samples]
    result.forward, result.backward, result.torch_forward, result.torch_backward = middle


def report(title: str, cases: Sequence[Case], rounds: int = 9, tolerance: float = 1e-4) -> None:
    """Check and time the cases, and print a table. ``AssertionError`` where an error is larger than
    ``tolerance``."""
    print(f"{title}; {torch.get_num_threads()} threads, medians of {rounds}, times in ms")
    print(
        f"{'':22}{'error':>8}{'gradients':>11}{'torch':>9}"
        f"{'forward':>10}{'torch':>9}{'backward':>10}{'torch':>9}"
    )
    for case in cases:
        result = check(case)
        worst = max(result.gradients.values())
        assert result.error < tolerance, f"{case.size}: differs from float64 by {result.error:.1e}"
        assert worst < tolerance, f"{case.size}: gradients differ by {result.gradients}"
        measure(case, result, rounds)
        print(
            f"{case.size:22}{result.error:8.0e}{worst:11.0e}{result.torch_error:9.0e}"
            f"{result.forward:10.3g}{result.torch_forward:9.3g}"
            f"{result.backward:10.3g}{result.torch_backward:9.3g}"
        )
