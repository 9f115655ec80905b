"""What a benchmark hands back: rows of figures, and verdicts against the targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from aio.measure.harness import Ratio, Series, TimedCalls, compare

Met = Literal["yes", "no", "one of two", "not measured"]


@dataclass(frozen=True)
class Row:
    """One contestant's figures for one piece of work; `ratio` compares it with `against`.

    `settings` has what was varied, for a picture.
    """

    work: str
    file: str  # "existing file", "overwrite" or "fresh file"
    series: Series
    against: str = ""
    ratio: Ratio | None = None
    settings: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class CallRow:
    """One contestant's figures for one short call."""

    work: str
    calls: TimedCalls


@dataclass(frozen=True)
class Verdict:
    """A target, what was measured, and whether it is met."""

    what: str
    target: str
    measured: str
    met: Met


@dataclass
class Result:
    """Everything one benchmark found; `missing` has the absent peers and the reasons."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    calls: list[CallRow] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    error: str = ""

    def add(
        self,
        work: str,
        file: str,
        series: dict[str, Series],
        best: Series,
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        """A row for every contestant, each compared with `best` in the same rounds."""
        for entry in series.values():
            ratio = None if entry is best else compare(entry.rates(), best.rates())
            self.rows.append(Row(work, file, entry, best.name, ratio, settings or {}))


def at_least(what: str, mine: Series, other: Series, target: float, unit: str) -> Verdict:
    """Met when both the ratio of medians and the median of the rounds' ratios reach the target.

    A rate that came from the page cache is shown, but says nothing of a device: it meets nothing.
    """
    ratio = compare(mine.rates(), other.rates())
    wanted = f">= {target:g} {unit}"
    if mine.mode.startswith("page cache") and other.mode.startswith("direct"):
        return Verdict(what, wanted, f"{ratio}, from the page cache", "not measured")
    met: Met = "yes" if ratio.lower >= target else "no" if ratio.upper < target else "one of two"
    return Verdict(what, wanted, str(ratio), met)


def at_most(what: str, value: float, target: float, unit: str, scale: float = 1.0) -> Verdict:
    """Met when the value is no more than the target; `scale` is for showing, e.g. 1e3 for ms."""
    met: Met = "yes" if value <= target else "no"
    return Verdict(what, f"<= {target * scale:g} {unit}", f"{value * scale:.3g} {unit}", met)


def not_measured(what: str, target: str, reason: str) -> Verdict:
    """A target that this run could not measure, and why."""
    return Verdict(what, target, reason, "not measured")
