"""The plots of a benchmark: rates over sizes, one line a provider, and the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.workbench.limits import Limits
from weft.workbench.rates import Row
from weft.workbench.report import UsageError

# Dark on light, told apart without colours by their markers (Okabe and Ito's palette).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def plot(title: str, rows: Sequence[Row], limits: Limits, path: Any) -> None:
    """Writes PNG, SVG or PDF, by the name of ``path``. Raises ``UsageError`` without matplotlib."""
    try:
        from matplotlib import rc_context  # an extra
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("plots need matplotlib\nhelp: pip install matplotlib") from None
    suffixes = (".png", ".svg", ".pdf")
    if Path(path).suffix not in suffixes:
        raise UsageError(f"{path} is no plot\nhelp: a name that ends with {', '.join(suffixes)}")
    timed = [row for row in rows if row.median]
    if not timed:
        raise UsageError("there is nothing to draw: no provider was timed")
    roofline = any(row.bytes and row.flops for row in timed)
    figure = Figure(figsize=(10.5 if roofline else 5.6, 4.2), layout="constrained")
    axes: Any = figure.subplots(1, 2 if roofline else 1, squeeze=False)[0]
    styles = {name: {"color": _COLOURS[k % 7], "marker": _MARKERS[k % 7], "markersize": 5}
              for k, name in enumerate(dict.fromkeys(row.provider for row in timed))}  # fmt: skip
    _over_sizes(axes[0], limits, timed, styles)
    if roofline:
        _roofline(axes[1], limits, timed, styles)
        axes[0].set_title("rates over sizes", fontsize=9)
        axes[1].set_title("roofline", fontsize=9)
    figure.suptitle(title, fontsize=11)
    with rc_context({"pdf.fonttype": 42, "svg.fonttype": "none"}):  # text that stays text
        try:
            figure.savefig(path, dpi=160)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _label(axes: Any, text: str, place: tuple[float, float], **how: Any) -> None:
    """A limit's name, on white, so that it is read where lines cross it."""
    white = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
    axes.annotate(text, place, color="0.3", fontsize=8, bbox=white, zorder=4, **how)


def _plain(axis: Any) -> None:
    """Numbers of a logarithmic axis as they are, at 1, 2 and 5 of each power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # as `plot` found it

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axis.set_minor_formatter(NullFormatter())


def _over_sizes(axes: Any, limits: Limits, rows: list[Row], styles: dict[str, Any]) -> None:
    """Rates over the size that is swept, or over the bytes that are moved where several are:
    GFLOP/s where arithmetic is the limit at the largest size, else GB/s; milliseconds, where
    nothing is known of bytes."""
    known = all(row.bytes for row in rows)
    what, unit, limit = limits.over_sizes(rows)
    swept = [name for name, _ in rows[0].sizes] if rows else []
    single = len(swept) == 1

    def x_of(row: Row) -> int:
        return row.sizes[0][1] if single else row.bytes

    for name, style in styles.items():
        mine = sorted((row for row in rows if row.provider == name), key=x_of)
        places = [x_of(row) for row in mine]

        def values(milliseconds: list[float], mine: list[Row] = mine) -> list[float]:
            if not known:
                return milliseconds
            return [(r.bytes if unit == "GB/s" else r.flops) / ms / 1e6
                    for r, ms in zip(mine, milliseconds, strict=True)]  # fmt: skip

        axes.plot(places, values([row.median for row in mine]), label=name, **style)
        low, high = (values([getattr(r, q) for r in mine]) for q in ("upper", "lower"))
        axes.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
    if known:
        axes.axhline(limit, color="0.4", linestyle="--", linewidth=1)
        _label(axes, f"{what}: {limit:,.3g} {unit}", (0.02, limit), va="center",
               xycoords=("axes fraction", "data"))  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain(axes.yaxis)
    if single:
        ticks = sorted({x_of(row) for row in rows})[:: max(1, len(rows) // len(styles) // 8)]
        axes.set_xticks(ticks, [f"{n:,}" for n in ticks], rotation=30, ha="right")
        axes.minorticks_off()
    axes.set_xlabel(swept[0] if single else "bytes moved")
    axes.set_ylabel(unit if known else "milliseconds")
    axes.grid(True, which="major", color="0.9")
    axes.legend(frameon=False, fontsize=8)


def _roofline(axes: Any, limits: Limits, rows: list[Row], styles: dict[str, Any]) -> None:
    """GFLOP/s over FLOPs per byte, under what the device reaches. Sizes that fit into caches may be
    above the slope, which is that of memory."""
    intensities = [row.flops / row.bytes for row in rows if row.bytes and row.flops]
    ridge = limits.arithmetic / limits.copy
    low, high = min([*intensities, ridge]) / 4, max([*intensities, ridge]) * 4
    axes.plot([low, ridge, high], [low * limits.copy, limits.arithmetic, limits.arithmetic],
              color="0.4", linestyle="--", linewidth=1)  # fmt: skip
    _label(axes, f"{limits.copy:,.3g} GB/s", (low, low * limits.copy), xytext=(6, -2),
           textcoords="offset points", va="top")  # fmt: skip
    _label(axes, f"{limits.arithmetic:,.3g} GFLOP/s", (high, limits.arithmetic), xytext=(0, -4),
           textcoords="offset points", ha="right", va="top")  # fmt: skip
    largest = max((row.bytes for row in rows), default=0)
    several = len({row.bytes for row in rows}) > 1
    for row in (r for r in rows if r.bytes and r.rate):
        faint = 1.0 if row.bytes == largest else 0.3  # smaller sizes
        axes.plot(row.flops / row.bytes, row.rate, linestyle="none", alpha=faint,
                  **styles[row.provider])  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain(axes.xaxis)
    _plain(axes.yaxis)
    axes.set_xlabel("FLOPs per byte" + (" (pale: smaller sizes)" if several else ""))
    axes.set_ylabel("GFLOP/s")
    axes.grid(True, which="major", color="0.9")
