"""Figures as PNG: rates with their spread and CPU per GB, one file for each piece of work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from .results import Result, Row


def missing() -> str:
    """Why nothing can be drawn; empty where it can."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return "matplotlib is not installed: pip install matplotlib, or leave out --png"
    return ""


def draw(result: Result, folder: Path, where: str) -> list[Path]:
    """One file for each piece of work with rates; `where` is what was measured, for the title."""
    works = dict.fromkeys(row.work for row in result.rows)
    rows = [[row for row in result.rows if row.work == work] for work in works]
    return [_draw(part, folder / _name(result.name, part[0].work), where) for part in rows]


def _name(benchmark: str, work: str) -> str:
    return f"{benchmark}-{re.sub(r'[^a-z0-9]+', '-', work.lower()).strip('-')}.png"


def _draw(rows: Sequence[Row], path: Path, where: str) -> Path:
    # Not pyplot: it keeps figures and looks for a screen.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.6 + 0.45 * len(rows)), layout="constrained")
    rates, processor = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    places = range(len(rows))
    medians = [row.series.median_rate() for row in rows]
    below = [median - min(row.series.rates()) for median, row in zip(medians, rows, strict=True)]
    above = [max(row.series.rates()) - median for median, row in zip(medians, rows, strict=True)]
    rates.barh(places, medians, xerr=(below, above), capsize=3, color="tab:blue")
    rates.set_yticks(places, [f"{row.series.name}\n{row.series.mode}" for row in rows], fontsize=7)
    rates.invert_yaxis()
    rates.set_xlabel("GB/s (1e9 bytes): median, least, most")
    cpu = [row.series.median_cpu_per_gb() for row in rows]
    processor.barh(places, cpu, color="tab:orange")
    processor.set_xlabel("CPU seconds per GB")
    figure.suptitle(f"{rows[0].work} ({rows[0].file})\n{where}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(path)
    return path
