"""Diagrams as SVG text, for a page that opens from disk without a network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 34, 44
NOTHING = 1e-12  # of any unit here; less is drawn as 0
COLOURS = 6  # classes c0 to c5 of the page's style


def line_chart(
    title: str,
    unit: str,
    places: Sequence[str],
    lines: Mapping[str, Sequence[float | None]],
    logarithmic: bool = False,
) -> str:
    """Values over named places; None leaves a place out. Negative values are not for this."""
    values = [value for line in lines.values() for value in line if value is not None]
    axis = _Axis(values, logarithmic)
    step = (WIDTH - LEFT - RIGHT) / max(len(places), 1)
    parts = [axis.grid(unit)]
    for index, place in enumerate(places):
        parts.append(_text(LEFT + step * (index + 0.5), HEIGHT - BOTTOM + 18, place, "middle"))
    for number, (name, line) in enumerate(lines.items()):
        colour = f"c{number % COLOURS}"
        points = [
            (LEFT + step * (index + 0.5), axis.height(value), value)
            for index, value in enumerate(line)
            if value is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        parts.append(f'<polyline class="line {colour}" points="{path}"/>')
        for x, y, value in points:
            words = escape(f"{name}: {value:.4g} {unit}")
            parts.append(
                f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
                f"<title>{words}</title></circle>"
            )
    return _figure(title, parts, list(lines))


def bar_chart(title: str, unit: str, bars: Mapping[str, float]) -> str:
    """One bar for each name, with its value."""
    axis = _Axis([0.0, *bars.values()], False)
    step = (WIDTH - LEFT - RIGHT) / max(len(bars), 1)
    width = min(step * 0.6, 80.0)
    parts = [axis.grid(unit)]
    for number, (name, value) in enumerate(bars.items()):
        middle, top = LEFT + step * (number + 0.5), axis.height(value)
        tall = HEIGHT - BOTTOM - top
        parts.append(
            f'<rect class="bar c{number % COLOURS}" x="{middle - width / 2:.1f}" y="{top:.1f}" '
            f'width="{width:.1f}" height="{tall:.1f}" rx="2">'
            f"<title>{escape(f'{name}: {value:.4g} {unit}')}</title></rect>"
        )
        parts.append(_text(middle, top - 6, f"{value:.3g}", "middle"))
        parts.append(_text(middle, HEIGHT - BOTTOM + 18, name, "middle"))
    return _figure(title, parts, [])


class _Axis:
    """The vertical one: from 0, or from a power of ten."""

    def __init__(self, values: Sequence[float], logarithmic: bool) -> None:
        positive = [value for value in values if value > NOTHING] or [1.0]
        self._logarithmic = logarithmic
        if logarithmic:
            self._least = 10.0 ** math.floor(math.log10(min(positive)))
            self._most = 10.0 ** math.ceil(math.log10(max(positive) * 1.01))
            decades = round(math.log10(self._most / self._least))
            self._ticks = [self._least * 10**power for power in range(decades + 1)]
        else:
            step = _nice(max(positive) * 1.1 / 5)
            count = math.ceil(max(positive) * 1.1 / step)
            self._least, self._most = 0.0, step * count
            self._ticks = [step * number for number in range(count + 1)]

    def height(self, value: float) -> float:
        """Where a value is, in the picture's units from its top."""
        if self._logarithmic:
            value = max(value, self._least)
            share = math.log(value / self._least) / math.log(self._most / self._least)
        else:
            share = value / self._most
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def grid(self, unit: str) -> str:
        """Lines, their numbers, and the unit above them."""
        parts = [_text(LEFT - 8, TOP - 14, unit, "end")]
        for tick in self._ticks:
            y = self.height(tick)
            line = f'x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"'
            parts.append(f'<line class="grid" {line}/>')
            parts.append(_text(LEFT - 8, y + 4, f"{tick:.4g}", "end"))
        return "".join(parts)


def _nice(step: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50, ... that is not smaller, at any scale."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * 0.999)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _figure(title: str, parts: Sequence[str], names: Sequence[str]) -> str:
    keys = "".join(
        f'<span class="key"><i class="c{number % COLOURS}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'{"".join(parts)}</svg><div class="keys">{keys}</div></figure>'
    )
