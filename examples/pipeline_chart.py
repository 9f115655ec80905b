"""A chart of one step of a SwappedOptimizer: when each sub-group was read, updated and written."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aio.swap.statistics import Span

KINDS = {"read": "#4c78a8", "compute": "#f58518", "write": "#54a24b"}
LABELS = 30  # of sub-groups, at most
HOW_TO_INSTALL = "no chart without matplotlib: pip install 'deepnvme[plot]'"


def can_draw() -> bool:
    """False where matplotlib is missing."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(spans: Sequence[Span], path: Path, title: str) -> None:
    """Write ``stats()["last_step"]["spans"]`` as a picture, .png or .svg by the suffix of ``path``.
    Needs matplotlib.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # From top to bottom in the order of the step, which alternates.
    computed = sorted((s for s in spans if s["kind"] == "compute"), key=lambda s: s["start"])
    row_of = {span["sub_group"]: row for row, span in enumerate(computed)}
    figure = Figure(figsize=(9, min(1.5 + 0.3 * len(row_of), 8)), layout="constrained")
    axes = figure.subplots()
    for lane, (kind, colour) in enumerate(KINDS.items()):
        mine = [s for s in spans if s["kind"] == kind and s["sub_group"] in row_of]
        axes.barh(
            [row_of[span["sub_group"]] + (lane - 1) * 0.28 for span in mine],
            [span["end"] - span["start"] for span in mine],
            left=[span["start"] for span in mine],
            height=0.28,
            color=colour,
            label=kind,
        )
    labelled = list(row_of)[:: 1 + len(row_of) // LABELS]
    axes.set_yticks([row_of[number] for number in labelled], [str(number) for number in labelled])
    axes.set_ylim(len(row_of) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds since the step began")
    axes.set_ylabel("sub-group")
    axes.set_title(title, fontsize=10)
    axes.legend(loc="upper right", fontsize=8)
    with rc_context({"svg.fonttype": "none"}):  # text as text: a tenth of the size
        figure.savefig(path, dpi=150)
