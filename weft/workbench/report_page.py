"""``weft report``: all that is known of a kernel, as one HTML page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from weft.errors import WeftError, first_line
from weft.frames import user_frames
from weft.kernel import Kernel, kernel_inside
from weft.runtime.candidates import large
from weft.values import frozen
from weft.version import VERSION
from weft.workbench import page
from weft.workbench.arguments import call_arguments
from weft.workbench.bench import Bench, bench
from weft.workbench.limits import Limits
from weft.workbench.page import Section
from weft.workbench.rates import Row
from weft.workbench.report import Table, UsageError
from weft.workbench.stages import compiled_loops
from weft.workbench.svg import Series, chart

Call = Callable[..., Any]
_HEADED = re.compile(r"^=== (.*?) ===\n(.*?)(?=^=== |\Z)", re.MULTILINE | re.DOTALL)


@frozen
class Page:
    """Where the page was written. ``missing``: what it lacks, and why."""

    kernel: str
    path: str
    bytes: int
    sections: tuple[str, ...]
    missing: tuple[str, ...] = ()
    ok: bool = True

    def __str__(self) -> str:
        told = f"{self.path}: {self.bytes:,} bytes; open it in a browser"
        return "\n".join([told, *(f"not there: {why}" for why in self.missing)])

    __repr__ = __str__

    def data(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("kernel", "path", "bytes", "sections",
                                                       "missing")}  # fmt: skip


@user_frames
def report(
    kernel: Any, *args: Any, path: str | Path = "", gpu: str = "", device: str = "",
    beside: Mapping[str, Call] | None = None, sweep: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None, measure: bool = True, seconds: float = 0.1,
    names: Mapping[str, Any] | None = None,
) -> Page:  # fmt: skip
    """Writes a page that needs nothing else: source beside IR, LLVM and machine code, what passes
    and schedule changed, index sets, gradient, cost, and measured times. ``path``: the file, by
    itself ``KERNEL.html``.

    Arguments are made as for ``weft.bench``, of ``sizes``, on ``device``; ``beside``, ``sweep`` and
    ``seconds`` are its own. ``measure``: without it nothing is timed. ``gpu``: the code that a GPU
    of that architecture ("sm_90") gets, which need not be here; then nothing is timed. Raises
    ``UsageError``.
    """
    inner = kernel_inside(kernel)
    if inner is None:
        raise UsageError(f"weft.report takes a kernel, not {type(kernel).__name__}\n"
                         "help: decorate the function with @weft.kernel")  # fmt: skip
    scope = getattr(inner.function, "__globals__", {}) if names is None else names
    if sweep and not args:
        sizes = {**{n: values[-1] for n, values in sweep.items()}, **(sizes or {})}
    given = call_arguments(inner, args, scope, sizes, "cpu" if gpu else device)
    measured = None
    if measure and not gpu:
        swept = {} if args else sweep
        measured = bench(inner, *(args or (() if swept else given)), beside=beside, sweep=swept,
                         sizes=sizes if swept else None, device=device, seconds=seconds,
                         names=dict(scope))  # fmt: skip
    missing: list[str] = []
    sections = [s for s in _sections(inner, given, gpu, measured, missing) if s.html]
    bound = inner.bind(given, {}).arguments
    told = ", ".join(f"{name}: {page.described(value)}" for name, value in bound.items())
    place = inner.span
    title = f"{inner.__name__}: weft report"
    html = page.page(title, f"{Path(place.file).name}, line {place.line}. Called with {told}. "
                     f"weft {VERSION}, torch {torch.__version__}.", sections)  # fmt: skip
    target = Path(path or f"{inner.__name__}.html")
    try:
        target.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error
    return Page(inner.__name__, str(target), len(html.encode()),
                tuple(s.name for s in sections), tuple(missing))  # fmt: skip


def _sections(
    kernel: Kernel, given: tuple[Any, ...], gpu: str, measured: Bench | None, missing: list[str]
) -> list[Section]:
    """The parts of the page, some of which may be empty. What cannot be said of a kernel is among
    the ``missing``, with the error's words."""

    def tried(what: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except (WeftError, NotImplementedError) as error:
            missing.append(f"{what}: {first_line(error)}")
            return None

    loops = compiled_loops(kernel, given, gpu, lines=True)
    cost = tried("cost", lambda: kernel.cost(*given))
    candidates = tried(
        "schedules", lambda: kernel.schedules(*given, device="cuda" if gpu else None)
    )
    gradient = tried("gradient", lambda: kernel.backward.inspect(*given)) or ""
    tangents = tried("tangents", lambda: kernel.jvp.inspect(*given)) or ""
    home = kernel.span.file, kernel.span.line
    code = [page.code(k, x.name, x.texts, home) for k, x in enumerate(loops)]
    if any("ptx" in x.texts and "sass" not in x.texts for x in loops):
        missing.append("SASS: neither nvdisasm nor cuobjdump is installed (pip install "
                       "nvidia-cuda-nvdisasm nvidia-cuda-nvcc)")  # fmt: skip
    changed = [f"<h3>{page.escape(x.name)}</h3>" + page.changes(x.texts) for x in loops]
    schedule = [page.text(x["schedule"], f"schedule of {x.name}") for x in loops]
    sets = [
        page.text(x["index sets in words"], f"index sets of {x.name} in words")
        + page.folded("in isl's notation", page.text(x["index sets"], f"index sets of {x.name}"))
        for x in loops
    ]
    inductor = "\n".join(filter(None, (x.texts.get("inductor", "") for x in loops)))
    inductor = page.text(inductor, "Inductor") if inductor else ""
    return [
        Section("summary", "Summary", _summary(loops, cost, measured)),
        Section("code", "Source and machine code", "".join(code)),
        Section("changes", "What each pass and each step changed", "".join(changed)),
        Section("schedule", "Schedule", "".join(schedule) + (
            page.folded("candidates", page.text(str(candidates), "candidates"))
            if candidates is not None else "")),
        Section("sets", "Index sets", "".join(sets)),
        Section("gradient", "Gradient", _derived(gradient, tangents)),
        Section("cost", "Cost", page.text(str(cost), "cost") if cost is not None else ""),
        Section("measured", "Measured", _measured(measured) if measured is not None else ""),
        Section("inductor", "In torch.compile", inductor),
        Section("compiled", "Compiled forms", _forms(kernel)),
    ]  # fmt: skip


def _summary(loops: Sequence[Any], cost: Any, measured: Bench | None) -> str:
    values = [("Loops", str(len(loops)), "that a call launches")]
    if cost is not None:
        sums, moved = cost.total, cost.moved
        values += [("Computes", large(sums.value, "FLOP"),
                    f"{sums.kind}counted from the index sets"),
                   ("Moves", large(moved.value, "B"), f"{moved.kind}of distinct elements"),
                   ("Intensity", f"{cost.intensity:.3g}",
                    f"{'' if cost.exact else 'about, in '}FLOPs per byte")]  # fmt: skip
    row = _largest(measured, "weft") if measured is not None else None
    if row is not None and measured is not None:
        reach = measured.limits
        values.append(("Takes", f"{row.median:.3g} ms", f"{row.lower:.3g} to {row.upper:.3g}, "
                       f"quartiles of {row.samples}"))  # fmt: skip
        if row.bandwidth:
            part = row.bandwidth / reach.copy
            values.append(("Bandwidth", f"{row.bandwidth:.3g} GB/s",
                           f"{part:.0%} of copying memory here"))  # fmt: skip
        if row.rate:
            part = row.rate / reach.arithmetic
            values.append(("Arithmetic", f"{row.rate:.3g} GFLOP/s",
                           f"{part:.0%} of multiply-adds here"))  # fmt: skip
            ridge = reach.arithmetic / reach.copy
            bound = "memory" if row.flops / max(row.bytes, 1) < ridge else "arithmetic"
            values.append(("Limit", bound, f"the two meet at {ridge:.3g} FLOPs per byte"))
    return page.facts(values)


def _largest(measured: Bench, provider: str) -> Row | None:
    """The row of ``provider`` that moves the most."""
    rows = [r for r in measured.rows if r.provider == provider and r.median]
    return max(rows, key=lambda row: (row.bytes, row.median), default=None)


def _derived(gradient: str, tangents: str) -> str:
    """The texts of derivatives, by their headings: in front of the IR, how each is computed."""
    parts: list[str] = []
    for heading, body in _HEADED.findall(f"{gradient}\n{tangents}"):
        head, func, ir = body.partition("func.func")
        parts.append(f"<h3>{page.escape(heading)}</h3>\n" + page.text(head.strip(), heading)
                     if head.strip() else f"<h3>{page.escape(heading)}</h3>\n")  # fmt: skip
        if func:
            parts.append(page.folded("IR", page.text(func + ir, f"IR of the {heading}")))
    return "".join(parts)


def _measured(measured: Bench) -> str:
    rows = [row for row in measured.rows if row.median]
    failed = [f"{row.provider}: {row.failure}" for row in measured.rows if row.failure]
    reach = measured.limits
    html = page.table(f"{measured.title}: medians and quartiles. This device copies "
                      f"{reach.copy:,.4g} GB/s and does {reach.arithmetic:,.4g} GFLOP/s of "
                      "multiply-adds, measured in the same run.", measured.table)  # fmt: skip
    html += page.text("\n".join(failed), "failures") if failed else ""
    charts = [_over_sizes(rows, reach), _roofline(rows, reach)]
    return html + f'<div class="charts">{"".join(charts)}</div>\n'


def _over_sizes(rows: Sequence[Row], reach: Limits) -> str:
    """Rates over what is swept, or over bytes; milliseconds where bytes are not known."""
    if len({row.sizes for row in rows}) < 2:
        return ""
    known = all(row.bytes for row in rows)
    single = len(rows[0].sizes) == 1
    if not (known or single):
        return ""
    what, unit, limit = reach.over_sizes(rows)

    def point(row: Row) -> tuple[float, float]:
        x = row.sizes[0][1] if single else row.bytes
        rate = row.bandwidth if unit == "GB/s" else row.rate
        return float(max(x, 1)), rate or 0.0 if known else row.median

    names = dict.fromkeys(row.provider for row in rows)
    series = [Series(n, tuple(sorted(point(r) for r in rows if r.provider == n))) for n in names]
    if known:
        xs = [x for s in series for x, _ in s.points]
        roof = ((min(xs), limit), (max(xs), limit))
        series.append(Series(f"{what}: {limit:,.3g} {unit}", roof, roof=True))
    x, y = rows[0].sizes[0][0] if single else "bytes moved", unit if known else "milliseconds"
    return chart(f"{y} over {x}", x, y, series)


def _roofline(rows: Sequence[Row], reach: Limits) -> str:
    """GFLOP/s over FLOPs per byte, under what the device reaches."""
    placed = [row for row in rows if row.bytes and row.rate]
    if not placed:
        return ""
    intensities = [row.flops / row.bytes for row in placed]
    ridge = reach.arithmetic / reach.copy
    low, high = min([*intensities, ridge]) / 4, max([*intensities, ridge]) * 4
    names = dict.fromkeys(row.provider for row in placed)
    found = [
        Series(n, tuple(sorted((r.flops / r.bytes, r.rate or 0.0)
                               for r in placed if r.provider == n)))
        for n in names
    ]  # fmt: skip
    roofs = [
        Series(f"{reach.copy:,.3g} GB/s", ((low, low * reach.copy), (ridge, reach.arithmetic)),
               roof=True),
        Series(f"{reach.arithmetic:,.3g} GFLOP/s",
               ((ridge, reach.arithmetic), (high, reach.arithmetic)), roof=True),
    ]  # fmt: skip
    return chart("Roofline", "FLOPs per byte", "GFLOP/s", [*found, *roofs])


def _forms(kernel: Kernel) -> str:
    """What was compiled in this process, and the milliseconds of each stage."""
    forms = kernel.specializations
    if not forms:
        return ""
    names = list(dict.fromkeys(s for form in forms for s in form.stages if "." not in s))
    rows = tuple(
        (form.line, form.signature, form.origin, form.plans, sum(form.stages.values()),
         *(form.stages.get(name) for name in names))
        for form in forms
    )  # fmt: skip
    columns = ("line", "arguments", "origin", "exact signatures", "ms in all", *names)
    return page.table("Loops compiled for types of arguments, and milliseconds of each stage",
                      Table(columns, rows))  # fmt: skip
