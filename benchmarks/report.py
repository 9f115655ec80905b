"""Tables for the eye, JSON for everything else. Rates are in GB/s with GB = 1e9 bytes."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aio.measure.harness import Series, TimedCalls, percentile

from .results import CallRow, Result, Row, Verdict

_COLOURS = {"yes": "green", "no": "red", "one of two": "yellow", "not measured": "dim"}


def show(console: Console, result: Result) -> None:
    """Everything one benchmark found: rates, single calls, targets, absent peers, its error."""
    console.print()
    console.rule(f"[bold]{escape(result.title)}[/bold] ({result.name})", align="left")
    for _, rows in itertools.groupby(result.rows, key=lambda row: row.work):
        console.print(_rates(list(rows)))
    if result.calls:
        console.print(_calls(result.calls))
    if result.verdicts:
        console.print(verdict_table(result.verdicts))
    for peer, reason in result.missing.items():
        console.print(f"missing: {escape(peer)}: {escape(reason)}", style="dim")
    if result.error:
        console.print(f"aborted: {escape(result.error)}", style="bold red")


def warn_if_busy(console: Console, load: float, cores: int) -> None:
    """Say so where other work had the processors before we started."""
    if load > cores / 2:
        console.print(
            f"load average {load:.1f} on {cores} cores: the figures are provisional", style="yellow"
        )


def _rates(rows: Sequence[Row]) -> Table:
    """The contestants of one piece of work."""
    first = rows[0]
    title = f"[bold]{escape(first.work)}[/bold]: {first.file}; ratio to {first.against}"
    table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD)
    table.add_column("contestant", no_wrap=True, min_width=20)
    table.add_column("how the bytes went", no_wrap=True, min_width=24)
    for heading, width in (
        ("GB/s", 5), ("min..max", 10), ("ops/s", 7), ("CPU s/GB", 8), ("cores", 5),
        ("p50 ms", 6), ("p99 ms", 6), ("of medians", 10), ("of rounds", 9),
    ):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*_rate_cells(row))
    return table


def _rate_cells(row: Row) -> list[str]:
    series, rates = row.series, row.series.rates()
    operations = statistics.median(series.values(lambda run: run.operations / run.seconds))
    return [
        escape(series.name),
        series.mode,
        f"{series.median_rate():.2f}",
        f"{min(rates):.2f}..{max(rates):.2f}",
        f"{operations:,.0f}" if series.kept[-1].operations > 1 else "",
        f"{series.median_cpu_per_gb():.3f}",
        f"{series.median_cores():.2f}",
        _milliseconds(series.median_latency("p50")),
        _milliseconds(series.median_latency("p99")),
        f"{row.ratio.of_medians:.2f}" if row.ratio else "",
        f"{row.ratio.median_of_rounds:.2f}" if row.ratio else "",
    ]


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}"


def _calls(rows: Sequence[CallRow]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("call")
    table.add_column("of")
    table.add_column("how")
    for title in ("p50", "min", "p99", "calls"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        seconds = row.calls.seconds
        table.add_row(
            escape(row.work),
            escape(row.calls.name),
            row.calls.mode,
            duration(row.calls.median),
            duration(min(seconds)),
            duration(percentile(seconds, 0.99)),
            str(len(seconds)),
        )
    return table


def duration(seconds: float) -> str:
    """Three digits and the unit that suits."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def markdown(result: Result) -> str:
    """The rates as a Markdown table: a line for each contestant, a column for each work."""
    works = list(dict.fromkeys(row.work for row in result.rows))
    cells = {(row.series.name, row.work): _markdown_cell(row.series) for row in result.rows}
    lines = ["| | " + " | ".join(works) + " |", "| --- |" + " --- |" * len(works)]
    for name in dict.fromkeys(row.series.name for row in result.rows):
        lines.append(
            "| " + " | ".join([name, *(cells.get((name, work), "") for work in works)]) + " |"
        )
    return "\n".join(lines)


def _markdown_cell(series: Series) -> str:
    rates = series.rates()
    return (
        f"{series.median_rate():.2f} GB/s ({min(rates):.2f} to {max(rates):.2f}), "
        f"{series.median_cpu_per_gb():.3f} CPU s/GB, {series.mode}"
    )


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Targets with what was measured; a ratio is shown as medians / rounds."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("what", "target", "measured", "met"):
        table.add_column(title)
    for verdict in verdicts:
        met = f"[{_COLOURS[verdict.met]}]{verdict.met}[/]"
        table.add_row(escape(verdict.what), escape(verdict.target), escape(verdict.measured), met)
    return table


def write_json(path: Path, machine: dict[str, Any], directories: list[dict[str, Any]]) -> None:
    """One object: "machine" and "directories", with every run that was made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "directories": directories}, indent=1) + "\n")


def as_json(result: Result) -> dict[str, Any]:
    """A result with its medians and every sample behind them; seconds and bytes."""
    return {
        "name": result.name,
        "title": result.title,
        "rows": [_row_json(row) for row in result.rows],
        "calls": [{"work": row.work, **_calls_json(row.calls)} for row in result.calls],
        "targets": [dataclasses.asdict(verdict) for verdict in result.verdicts],
        "missing": result.missing,
        "error": result.error,
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "work": row.work,
        "file": row.file,
        "contestant": row.series.name,
        "mode": row.series.mode,
        "against": row.against,
        "ratio": dataclasses.asdict(row.ratio) if row.ratio else None,
        "settings": dict(row.settings),
        **_series_json(row.series),
    }


def _series_json(series: Series) -> dict[str, Any]:
    rates = series.rates()
    return {
        "gb_per_second": {"median": series.median_rate(), "min": min(rates), "max": max(rates)},
        "cpu_seconds_per_gb": series.median_cpu_per_gb(),
        "cores": series.median_cores(),
        "p50_seconds": series.median_latency("p50"),
        "p99_seconds": series.median_latency("p99"),
        "rounds": [[dataclasses.asdict(run) for run in attempts] for attempts in series.all],
    }


def _calls_json(calls: TimedCalls) -> dict[str, Any]:
    return {
        "contestant": calls.name,
        "mode": calls.mode,
        "p50_seconds": calls.median,
        "p99_seconds": percentile(calls.seconds, 0.99),
        "min_seconds": min(calls.seconds),
        "count": len(calls.seconds),
    }
