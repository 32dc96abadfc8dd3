"""Charts with two logarithmic axes as SVG, in the colours of the page that they stand in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from weft.values import frozen

_WIDE, _HIGH = 560.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 14.0, 16.0, 46.0
_COLOURS = 6  # of the page's style sheet
_MARKS = ("M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-4,-4h8v8h-8z", "M0,-5l5,9h-10z",
          "M0,-5l5,5l-5,5l-5,-5z", "M0,5l5,-9h-10z", "M-4,-4l8,8m0,-8l-8,8")  # fmt: skip


@frozen
class Series:
    """Points (x, y), joined by a line if there are several; ``roof``: a limit, dashed."""

    name: str
    points: tuple[tuple[float, float], ...]
    roof: bool = False


def chart(title: str, x: str, y: str, series: Sequence[Series]) -> str:
    """``x`` and ``y`` say what is along the axes. All coordinates are positive."""
    every = [p for s in series for p in s.points]
    low_x, high_x = _ends([a for a, _ in every])
    low_y, high_y = _ends([b for _, b in every])

    def place(a: float, b: float) -> tuple[float, float]:
        across = math.log(a / low_x) / math.log(high_x / low_x)
        up = math.log(b / low_y) / math.log(high_y / low_y)
        return (_LEFT + across * (_WIDE - _LEFT - _RIGHT),
                _HIGH - _BOTTOM - up * (_HIGH - _TOP - _BOTTOM))  # fmt: skip

    parts = [f'<svg viewBox="0 0 {_WIDE:g} {_HIGH:g}" role="img" aria-label="{escape(title)}">']
    for tick in _ticks(low_x, high_x):
        across, _ = place(tick, low_y)
        parts.append(f'<path class="axis" d="M{across:.1f},{_TOP:g}V{_HIGH - _BOTTOM:g}"/>'
                     f'<text x="{across:.1f}" y="{_HIGH - _BOTTOM + 16:g}" text-anchor="middle" '
                     f'class="dim">{_short(tick)}</text>')  # fmt: skip
    for tick in _ticks(low_y, high_y):
        _, up = place(low_x, tick)
        parts.append(f'<path class="axis" d="M{_LEFT:g},{up:.1f}H{_WIDE - _RIGHT:g}"/>'
                     f'<text x="{_LEFT - 6:g}" y="{up + 4:.1f}" text-anchor="end" class="dim">'
                     f"{_short(tick)}</text>")  # fmt: skip
    parts.append(f'<text x="{(_LEFT + _WIDE) / 2:g}" y="{_HIGH - 10:g}" text-anchor="middle">'
                 f'{escape(x)}</text><text transform="translate(14,{_HIGH / 2 - 14:g})rotate(-90)" '
                 f'text-anchor="middle">{escape(y)}</text>')  # fmt: skip
    solid = [s for s in series if not s.roof]
    bottom = _HIGH - _BOTTOM + 4 - 17 * len(solid)  # of the legend, where a roofline has nothing
    for one in series:
        points = [place(*p) for p in one.points]
        path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in points)
        if one.roof:
            a, b = points[-1]
            parts.append(f'<path class="roof" d="{path}"/><text x="{a:.1f}" y="{b - 5:.1f}" '
                         f'text-anchor="end" class="dim">{escape(one.name)}</text>')  # fmt: skip
            continue
        k = solid.index(one)
        colour = f"var(--c{k % _COLOURS})"
        if len(points) > 1:
            parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (a, b), (u, v) in zip(points, one.points, strict=True):
            tip = f"{one.name}: {_short(v)} {y} at {_short(u)} {x}"
            parts.append(f'<path d="{_MARKS[k % len(_MARKS)]}" fill="{colour}" stroke="{colour}" '
                         f'transform="translate({a:.1f},{b:.1f})"><title>{escape(tip)}</title>'
                         "</path>")  # fmt: skip
        parts.append(f'<path d="{_MARKS[k % len(_MARKS)]}" fill="{colour}" stroke="{colour}" '
                     f'transform="translate({_WIDE - _RIGHT - 14:g},{bottom + 17 * k:g})"/><text '
                     f'x="{_WIDE - _RIGHT - 24:g}" y="{bottom + 4 + 17 * k:g}" text-anchor="end">'
                     f"{escape(one.name)}</text>")  # fmt: skip
    return "".join([*parts, "</svg>"])


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis, which is never empty, with some room above."""
    low, high = min(values) / 1.5, max(values) * 2
    return low, max(high, low * 12)


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten; those times 1, 2 and 5 where these are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    step = 1 + len(exponents) // 8
    few = len(exponents) <= 4
    every = [m * 10.0**e for e in exponents[::step] for m in ((1, 2, 5) if few else (1,))]
    return [t for t in every if low <= t <= high]


def _short(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
