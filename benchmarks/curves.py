"""Draws what `block_sizes` has measured: throughput over block size, beside the best fio.

python -m benchmarks --dir DIR --only block_sizes --size 256M --json blocks.json
python -m benchmarks.curves blocks.json throughput.svg
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from aio.measure.sizes import format_size

from . import plot

_COLOURS = {"aio": "#1f5fa8", "best fio": "#d9730d"}
_STYLES = ("--", "-")  # of the smaller depth, and of the larger one
_TICKS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)  # GB/s


class Point(NamedTuple):
    """GB/s at one block size: the median, the least and the most."""

    block_size: int
    median: float
    least: float
    most: float


Lines = dict[tuple[str, str, int], list[Point]]


def lines_of(rows: Iterable[dict[str, Any]]) -> Lines:
    """By direction, contestant ("aio", "best fio") and depth: points by rising block size."""
    found: dict[tuple[str, str, int], dict[int, Point]] = {}
    for row in rows:
        settings, rate = row["settings"], row["gb_per_second"]
        who = "best fio" if row["contestant"].startswith("fio ") else "aio"
        line = found.setdefault((settings["direction"], who, settings["queue_depth"]), {})
        point = Point(settings["block_size"], rate["median"], rate["min"], rate["max"])
        line[point.block_size] = max(point, line.get(point.block_size, point), key=_median)
    return {key: sorted(line.values()) for key, line in found.items()}


def _median(point: Point) -> float:
    return point.median


def rows_of(document: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The rows of the first directory with any, and what they were measured on.

    Raises ValueError where `block_sizes` is not among the results.
    """
    machine = document["machine"]
    for directory in document["directories"]:
        for benchmark in directory["benchmarks"]:
            if benchmark["name"] == "block_sizes" and benchmark["rows"]:
                device = f"{directory['file_system']} on {directory.get('device', 'memory')}"
                about = f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}"
                return benchmark["rows"], f"{about}, {device}, {machine['fio']}"
    raise ValueError("it has no results of block_sizes: run it with --only block_sizes")


def draw(lines: Lines, where: str, path: Path) -> None:
    """One diagram for each direction, side by side; .svg or .png by the suffix of `path`."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    directions = list(dict.fromkeys(direction for direction, _, _ in lines))
    sizes = sorted({point.block_size for line in lines.values() for point in line})
    depths = sorted({depth for _, _, depth in lines})
    panels = figure.subplots(1, len(directions), sharey=True, squeeze=False)[0]
    for panel, direction in zip(panels, directions, strict=True):
        for (of, who, depth), line in lines.items():
            if of == direction:
                medians = [point.median for point in line]
                below = [point.median - point.least for point in line]
                above = [point.most - point.median for point in line]
                panel.errorbar(
                    [point.block_size for point in line],
                    medians,
                    yerr=(below, above),
                    label=f"{who}, depth {depth}",
                    color=_COLOURS[who],
                    linestyle=_STYLES[depth == depths[-1]],
                    marker="o" if who == "aio" else "s",
                    markersize=4,
                    capsize=2,
                    elinewidth=0.8,
                )  # fmt: skip
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
        panel.set_xticks(sizes, [format_size(size) for size in sizes], fontsize=8)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.set_title(direction, fontsize=10)
        panel.set_xlabel("block size")
    rates = [
        rate for line in lines.values() for point in line for rate in (point.least, point.most)
    ]
    panels[0].set_ylim(min(rates) / 1.3, max(rates) * 1.3)  # of all: they share the axis
    panels[0].set_ylabel("GB/s (1e9 bytes): median, least, most")
    panels[0].legend(fontsize=8, loc="lower right")
    figure.suptitle(where, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Text as text, and the same bytes for the same figures.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "deepnvme"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)


def main(arguments: list[str] | None = None) -> int:
    """Read, draw. Returns 1 where there is nothing to draw, 2 where nothing can be drawn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=__doc__)
    parser.add_argument("results", type=Path, help="JSON of python -m benchmarks")
    parser.add_argument("picture", type=Path, help="what to write: .svg or .png")
    options = parser.parse_args(arguments)
    if reason := plot.missing():
        parser.error(reason)
    try:
        rows, where = rows_of(json.loads(options.results.read_text()))
        draw(lines_of(rows), where, options.picture)
    except (OSError, ValueError) as error:
        print(f"{options.results}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
