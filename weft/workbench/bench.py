"""``weft bench``: a kernel beside others that compute the same, over sizes: checked, then timed."""

from __future__ import annotations

import functools
import inspect
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch

from weft.errors import CompileError
from weft.frames import user_frames
from weft.kernel import Kernel, kernel_inside
from weft.tuning.measure import repeated, repeats, samples
from weft.tuning.measure import shown as progress
from weft.tuning.state import tensors_in
from weft.values import frozen
from weft.workbench import compare
from weft.workbench.arguments import call_arguments, device_of
from weft.workbench.cases import same_numbers
from weft.workbench.limits import Limits, limits
from weft.workbench.rates import Row
from weft.workbench.report import Table, UsageError

Call = Callable[..., Any]
_FLUSHED = 256 << 20  # bytes that are written where caches are to be cold


@frozen
class Bench:
    """What ``weft.bench`` measured, and what the device reaches."""

    name: str
    rows: tuple[Row, ...]
    limits: Limits
    backward: bool = False

    @property
    def ok(self) -> bool:
        """Whether every provider computes what the others do, and was timed."""
        return not any(row.failure for row in self.rows)

    @property
    def title(self) -> str:
        return f"{self.name}{', backward' if self.backward else ''}, on {self.limits.device}"

    @property
    def table(self) -> Table:
        """One row a provider and sizes. Percents are of what the device was measured to reach:
        copying, and multiply-adds."""
        names = [name for name, _ in self.rows[0].sizes] if self.rows else []
        columns = (*names, "provider", "ms", "25 %", "75 %", "GB/s", "% of copy", "GFLOP/s",
                   "% of peak", "times the fastest")  # fmt: skip
        best: dict[Any, float] = {}
        for row in (r for r in self.rows if r.median):
            best[row.sizes] = min(row.median, best.get(row.sizes, row.median))

        def cells(row: Row) -> tuple[Any, ...]:
            sizes = [n for _, n in row.sizes]
            if row.failure:
                return (*sizes, row.provider, *[None] * 8)
            copy = row.bandwidth and 100 * row.bandwidth / self.limits.copy
            sums = row.rate and 100 * row.rate / self.limits.arithmetic
            return (*sizes, row.provider, row.median, row.lower, row.upper, row.bandwidth, copy,
                    row.rate, sums, row.median / best[row.sizes])  # fmt: skip

        rows = tuple(map(cells, self.rows))
        kept = [k for k in range(len(columns)) if any(row[k] is not None for row in rows)]
        return Table(tuple(columns[k] for k in kept),
                     tuple(tuple(row[k] for k in kept) for row in rows))  # fmt: skip

    def __str__(self) -> str:
        reach = self.limits
        head = (
            f"{self.title}: medians and quartiles, taken in turn\n"
            f"this device copies {reach.copy:,.4g} GB/s and does {reach.arithmetic:,.4g} GFLOP/s "
            "of multiply-adds, measured now"
        )
        failed: dict[str, str] = {}  # the first of each provider
        for row in (r for r in self.rows if r.failure):
            sizes = ", ".join(f"{name} = {n}" for name, n in row.sizes)
            at = f" at {sizes}" if sizes else ""
            failed.setdefault(row.provider, f"WRONG: {row.provider}{at}: {row.failure}")
        told = ["\n".join(failed.values())] if failed else []
        return "\n\n".join([head, str(self.table), *told])

    __repr__ = __str__

    def data(self) -> dict[str, Any]:
        reached = {name: getattr(self.limits, name) for name in Limits.__match_args__}
        rows = [{**dict(row.sizes), **{n: getattr(row, n) for n in Row.__match_args__[1:]},
                 "GB/s": row.bandwidth, "GFLOP/s": row.rate} for row in self.rows]  # fmt: skip
        return {"name": self.name, "backward": self.backward, "limits": reached, "rows": rows}

    def plot(self, path: Any) -> None:
        """Draws rates over sizes, and the roofline, into a file: PNG, SVG or PDF by its name."""
        from weft.workbench.plot import plot  # matplotlib, an extra, is imported for it

        plot(self.title, self.rows, self.limits, path)


@frozen
class Plan:
    """How it is measured. ``cold``: caches are emptied before each call. ``backward``: the gradient
    by all floating-point arguments is timed, not the call. ``seconds``: for each provider at each
    size."""

    device: str = ""
    cold: bool = False
    backward: bool = False
    seconds: float = 0.1

    @property
    def where(self) -> torch.device:
        return device_of(self.device)


@user_frames
def bench(
    kernel: Any, *args: Any, beside: Mapping[str, Call] | None = None,
    sweep: Mapping[str, Sequence[int]] | None = None, sizes: Mapping[str, int] | None = None,
    device: str = "", cold: bool = False, backward: bool = False, seconds: float = 0.1,
    names: dict[str, Any] | None = None,
) -> Bench:  # fmt: skip
    """Times ``kernel`` and the functions ``beside`` it, which take the same arguments, over sizes.

    Arguments are ``args``; or those that the function ``NAME_arguments`` of the kernel's module (or
    ``names``) makes, or that are made from annotations, of each combination of the sizes that
    ``sweep`` lists, the others being ``sizes``. Every provider's results are compared with the
    kernel's in float64 before it is timed. ``device``: the GPU if there is one. ``cold``: caches
    are emptied before each call. ``backward``: the gradient by all floating-point arguments is
    timed, not the call.
    ``seconds``: for each provider at each size. Where the kernel has implementations, "weft" is the
    loop, and each that applies to the arguments is a provider. Raises ``UsageError``.
    """
    inner = kernel_inside(kernel)
    if inner is None:
        raise UsageError(f"weft.bench takes a kernel, not {type(kernel).__name__}\nhelp: decorate "
                         "the function with @weft.kernel; give others as beside={...}")  # fmt: skip
    scope = getattr(inner.function, "__globals__", {}) if names is None else names

    def make(**swept: int) -> tuple[Any, ...]:
        return call_arguments(inner, args, scope, {**(sizes or {}), **swept}, str(plan.where))

    plan = Plan(device, cold, backward, seconds)
    others: Any = inner.implementations  # a gradient is the loop's
    own = {"weft": kernel} if others is None else others.providers(plan.where, backward)
    providers = {**own, **(beside or {})}
    return Benchmark(inner.__name__, make, providers, dict(sweep or {}), plan).run()


def benchmark(
    providers: Mapping[str, Call], *, device: str = "", cold: bool = False, backward: bool = False,
    seconds: float = 0.1, **sweep: Sequence[int],
) -> Callable[[Callable[..., Any]], Benchmark]:  # fmt: skip
    """Makes a benchmark of a function from sizes to a tuple of arguments, which all ``providers``
    take: ``@weft.benchmark({"weft": square, "torch": torch.square}, n=[1024, 4096])``. What is
    measured and how is as for ``weft.bench``; the first kernel among the providers says what is
    right, and what is moved and computed."""

    def decorate(make: Callable[..., Any]) -> Benchmark:
        plan = Plan(device, cold, backward, seconds)
        return Benchmark(make.__name__, make, dict(providers), sweep, plan)

    return decorate


@frozen
class Benchmark:
    """Providers, the sizes to sweep, and what makes arguments of sizes: ``run()`` measures."""

    name: str
    make: Callable[..., Any]
    providers: dict[str, Call]
    sweep: Mapping[str, Sequence[int]]
    plan: Plan = field(default_factory=Plan)

    def run(self) -> Bench:
        """Checks and times every provider at every size."""
        sizes = [dict(zip(self.sweep, values, strict=True))
                 for values in itertools.product(*self.sweep.values())]  # fmt: skip
        found: list[Row] = []
        for one in progress(sizes, len(sizes), f"measuring {self.name}"):
            found += self._at(one)
        return Bench(self.name, tuple(found), limits(self.plan.where), self.plan.backward)

    @functools.cached_property
    def _kernel(self) -> Kernel | None:
        return next((k for p in self.providers.values() if (k := kernel_inside(p))), None)

    @property
    def _first(self) -> Call:
        return self._kernel or next(iter(self.providers.values()))

    def _at(self, sizes: dict[str, int]) -> Iterator[Row]:
        where, plan = self.plan.where, self.plan
        made = self.make(**sizes)
        args = tuple(v.to(where) if isinstance(v, torch.Tensor) else v
                     for v in (made if isinstance(made, tuple) else (made,)))  # fmt: skip
        key, moved, computed = tuple(sizes.items()), *self._cost(args)
        expected = self._expected(args)
        kept = _restoring(args, self._kernel, plan, where)
        calls: dict[str, Callable[[], Any]] = {}
        for name, provider in self.providers.items():
            try:
                calls[name], found = prepared(provider, args, plan.backward)
                failure = unlike(expected, found, functools.partial(self._noisy, args))
                count = 1 if plan.cold or where.type == "cuda" else repeats(calls[name])
                calls[name] = repeated(calls[name], count)
                kept()
            except Exception as error:  # whatever a provider raises is in its row
                failure, count = brief(error), 1
            if failure:
                calls.pop(name, None)
                yield Row(key, name, failure=failure)
        counts = {name: getattr(call, "count", 1) for name, call in calls.items()}
        taken = samples([*calls.values()], where, kept, seconds=plan.seconds) if calls else []
        for (name, count), times in zip(counts.items(), taken, strict=True):
            lower, median, upper = statistics.quantiles([t / count for t in times], n=4)
            yield Row(key, name, median, lower, upper, len(times), moved, computed)

    def _cost(self, args: tuple[Any, ...]) -> tuple[int, int]:
        """Bytes and FLOPs of a call, or of its gradient; zeros where they cannot be counted."""
        if self._kernel is None:
            return 0, 0
        try:
            cost = (self._kernel.backward if self.plan.backward else self._kernel).cost(*args)
        except CompileError:  # while loops, for one; rows have times all the same
            return 0, 0
        return cost.bytes, cost.flops

    def _expected(self, args: tuple[Any, ...]) -> list[torch.Tensor]:
        """What the first kernel computes in float64, or in the arguments' own dtypes where it is
        for these alone; what the first provider does, where there is no kernel. Whole numbers, the
        place of the largest element say, are those of the own dtypes."""
        first = self._first
        own = prepared(first, args, self.plan.backward)[1]
        double = tuple(compare.widened(v) if isinstance(v, torch.Tensor) else v for v in args)
        try:
            exact = prepared(first, double, self.plan.backward)[1]
        except Exception:  # annotations may name a dtype: what is wrong besides, the row says
            return own
        return [e if compare.is_inexact(e) else o for e, o in zip(exact, own, strict=True)]

    def _noisy(self, args: tuple[Any, ...]) -> list[list[torch.Tensor]]:
        """What the first kernel computes in float64 of arguments that are off by some roundings,
        twice: sums that cancel are off by as much in any order."""
        amount = compare.noise_of(*(v.dtype for v in args if isinstance(v, torch.Tensor)))

        def moved(value: Any, noise: float) -> Any:
            if not compare.is_inexact(value):
                return value
            wide = compare.widened(value.detach()).cpu()
            return compare.with_noise(wide, noise).to(value.device)

        try:
            return [prepared(self._first, tuple(moved(v, n) for v in args), self.plan.backward)[1]
                    for n in (amount, -1.7 * amount)]  # fmt: skip
        except Exception:  # annotations may name a dtype, as above
            return []


def prepared(
    provider: Call, args: tuple[Any, ...], backward: bool
) -> tuple[Callable[[], Any], list[torch.Tensor]]:
    """A call of ``provider`` without arguments, or of its gradient, and what it computes: results,
    and the tensors among arguments, as they are after it; gradients. Random numbers are those of
    one seed."""
    if not backward:
        copies = tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in args)
        with torch.no_grad(), same_numbers():
            result = provider(*copies)

        def call() -> Any:
            with torch.no_grad():
                return provider(*args)

        tensors = [*tensors_in(result), *(t for t in copies if isinstance(t, torch.Tensor))]
        return call, [t.detach().clone() for t in tensors]
    leaves = tuple(
        v.detach().clone().requires_grad_() if compare.is_inexact(v) else v for v in args
    )
    wanted = [v for v in leaves if compare.is_inexact(v)]
    with same_numbers():
        out = [t for t in tensors_in(provider(*leaves)) if t.requires_grad]
    generator = torch.Generator().manual_seed(1)
    given = [torch.randn(t.size(), generator=generator, dtype=torch.float64).to(t) for t in out]

    def gradient() -> Any:
        return torch.autograd.grad(out, wanted, given, retain_graph=True, materialize_grads=True)

    return gradient, [t.detach() for t in gradient()]


def unlike(
    expected: Sequence[torch.Tensor], found: Sequence[torch.Tensor],
    noisy: Callable[[], Sequence[Sequence[torch.Tensor]]],
) -> str:  # fmt: skip
    """How results differ from those that are expected by more than ``noisy()`` ones do; "" where
    they do not."""
    wanted, there = ([list(t.size()) for t in tensors] for tensors in (expected, found))
    if wanted != there:
        if len(wanted) != len(there):
            return f"{len(there)} tensors in place of {len(wanted)}"
        one, other = next((a, b) for a, b in zip(wanted, there, strict=True) if a != b)
        return f"shape {other} in place of {one}"
    pairs = zip(map(compare.parts, expected), map(compare.parts, found), strict=True)
    for k, (one, other) in enumerate(pairs):
        most = compare.tolerance(one.dtype, other.dtype)
        good = compare.close(one.cpu().double(), other.cpu().double(), most)
        if not good.all() and compare.is_inexact(one):
            moved = [compare.parts(results[k]).cpu() for results in noisy()]
            good = compare.allowed(one.cpu(), moved, other.cpu(), most)
        if not good.all():
            return str(compare.described("a result", one.cpu(), other.cpu(), good))
    return ""


def _restoring(
    args: tuple[Any, ...], kernel: Kernel | None, plan: Plan, where: torch.device
) -> Callable[[], Any]:
    """What is done before each sample: arguments that the kernel writes to are put back; where
    caches are to be cold, other memory is written."""
    names = [*kernel.signature.parameters] if kernel is not None else []
    mutated = kernel.mutated if kernel is not None and not plan.backward else frozenset()
    written = [v for n, v in zip(names, args, strict=False) if n in mutated]
    kept = [(v, v.clone()) for v in written if isinstance(v, torch.Tensor)]
    flushed = torch.empty(_FLUSHED if plan.cold else 0, dtype=torch.uint8, device=where)

    def restore() -> None:
        for value, content in kept:
            value.copy_(content)
        flushed.fill_(1)

    return restore


def brief(error: Exception) -> str:
    """The first line of an error; what is known to be missing in a few words."""
    text = f"{type(error).__name__}: {error}"
    if "InvalidCxxCompiler" in text or "No working C++ compiler" in text:
        return "there is no C++ compiler"
    return text.strip().splitlines()[0][:200]


def beside_of(names: Mapping[str, Any], listed: Sequence[str], compiled: bool) -> dict[str, Call]:
    """The functions of a file that are ``listed``, and, if ``compiled``, what torch.compile makes
    of each. Raises ``UsageError``."""
    found: dict[str, Call] = {}
    for name in listed:
        function = names.get(name)
        if not callable(function):
            there = [n for n, v in names.items() if inspect.isfunction(v)]
            raise UsageError(f"there is no function {name!r} beside the kernel\n"
                             f"help: there are {', '.join(there) or 'none'}")  # fmt: skip
        found[name] = function
        if compiled:
            found[f"torch.compile of {name}"] = torch.compile(function)
    return found
