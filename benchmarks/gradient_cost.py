"""What forward plus backward of a few numbers costs, beside PyTorch's own operation.

Both take turns in one process: a sample is some hundred calls of one, timed in processor time, and
the ratio shown is the median of those of neighbouring samples. "grad" is ``torch.autograd.grad``
with a gradient given for the result, "backward" is ``f(...).sum().backward()`` into ``.grad``
that is there already. On CUDA ("--device cuda") a sample ends with ``torch.cuda.synchronize``, and
the clock is the wall's.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

import weft
from benchmarks.harness import Row, parser, tables

Function = Callable[..., torch.Tensor]
SIZES = (1, 64, 1024)
CALLS = 300  # of a sample


@weft.kernel
def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * y[i]
    return out


@weft.kernel
def multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * y[i] + z[i]
    return out


@weft.kernel
def dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((), dtype=x.dtype, device=x.device)
    for i in range(x.shape[0]):
        total[()] += x[i] * y[i]
    return total


@weft.kernel
def scaled(x: torch.Tensor, a: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = a * x[i]
    return out


# By name: weft's, PyTorch's, how many tensors they take.
PAIRS: dict[str, tuple[Function, Function, int]] = {
    "x * y": (multiply, torch.mul, 2),
    "x * y * y, two kernels": (
        lambda x, y: multiply(multiply(x, y), y),
        lambda x, y: torch.mul(torch.mul(x, y), y),
        2,
    ),
    "x * y + z": (multiply_add, lambda x, y, z: x * y + z, 3),
    "(x * y).sum()": (dot, lambda x, y: (x * y).sum(), 2),
    "2.5 * x": (lambda x: scaled(x, 2.5), lambda x: 2.5 * x, 1),
}


def by_grad(function: Function, leaves: Sequence[torch.Tensor]) -> Callable[[], object]:
    """``torch.autograd.grad`` with a gradient given."""
    given = torch.randn_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, given)


def by_backward(function: Function, leaves: Sequence[torch.Tensor]) -> Callable[[], object]:
    """``backward`` of the sum."""
    own = [t.detach().clone().requires_grad_() for t in leaves]
    return lambda: function(*own).sum().backward()


WAYS = {"grad": by_grad, "backward": by_backward}


def sample(call: Callable[[], object], cuda: bool) -> float:
    """Microseconds of one call, from many."""
    clock = time.perf_counter if cuda else time.process_time
    begin = clock()
    for _ in range(CALLS):
        call()
    if cuda:
        torch.cuda.synchronize()
    return (clock() - begin) * 1e6 / CALLS


def compare(
    calls: Sequence[Callable[[], object]], rounds: int, cuda: bool
) -> tuple[float, float, float]:
    """Microseconds of weft's and of PyTorch's, and the ratio: medians."""
    for call in calls:
        sample(call, cuda)
    taken = [[sample(call, cuda) for call in calls] for _ in range(rounds)]
    ratio = statistics.median(mine / theirs for mine, theirs in taken)
    mine, theirs = map(statistics.median, zip(*taken, strict=True))
    return mine, theirs, ratio


def check(ours: Function, theirs: Function, leaves: Sequence[torch.Tensor]) -> None:
    """Gradients are those of PyTorch in float64."""
    wide = [t.detach().double().requires_grad_() for t in leaves]
    expected = torch.autograd.grad(theirs(*wide).sum(), wide)
    for _ in range(3):  # the first is planned, later ones are as it was
        found = torch.autograd.grad(ours(*leaves).sum(), leaves)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def run(*, quick: bool, threads: int, only: str = "", device: str = "cpu") -> list[Row]:
    """Measure all pairs on one thread, print the table, return its rows."""
    del only, threads  # PyTorch is always beside it; a few numbers are for one thread
    torch.set_num_threads(1)
    rows: list[Row] = []
    title = f"forward plus backward of n numbers on {device}"
    for name, (ours, theirs, count) in PAIRS.items():
        for n in SIZES:
            leaves = [torch.randn(n, device=device, requires_grad=True) for _ in range(count)]
            check(ours, theirs, leaves)
            for way, make in WAYS.items():
                calls = [make(f, leaves) for f in (ours, theirs)]
                mine, own, ratio = compare(calls, 7 if quick else 21, device == "cuda")
                case = f"{way}, n = {n}"
                rows += [
                    Row("gradient_cost", title, case, f"{name}, weft", "µs", mine, compared=False),
                    Row(
                        "gradient_cost", title, case, f"{name}, PyTorch", "µs", own, compared=False
                    ),
                    Row("gradient_cost", title, case, f"{name}, ratio", "", ratio, compared=False),
                ]
    print(tables(rows), flush=True)
    return rows


def main() -> None:
    """``python -m benchmarks.gradient_cost``."""
    options = parser("benchmarks.gradient_cost")
    options.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    given = options.parse_args()
    run(quick=given.quick, threads=1, device=given.device)


if __name__ == "__main__":
    main()
