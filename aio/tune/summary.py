"""What was found, as tables, as DeepSpeed's lines, as JSON and as a profile.

Rates in text are in GB/sec with GB = 1024^3 bytes, as DeepSpeed's commands have them; JSON has
bytes, seconds and bytes per second.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from aio.measure.sizes import GIB, format_size
from aio.options import HandleOptions
from aio.profiles import Optimum, Profile, drives_of
from aio.tune.search import Entry
from aio.tune.session import Findings
from aio.tune.workload import DIRECTIONS, PERCENTILES

VERSION = 1

# What DeepSpeed's configuration has under "aio", with the types that its JSON must have.
AIO_KEYS = (
    "block_size",
    "queue_depth",
    "intra_op_parallelism",
    "single_submit",
    "overlap_events",
)


def aio_section(options: HandleOptions) -> dict[str, Any]:
    """The "aio" part of a DeepSpeed configuration."""
    return {"aio": {name: getattr(options, name) for name in AIO_KEYS}}


def in_words(options: HandleOptions) -> str:
    """Options in a few words: "1 MiB x 32, 2 workers, io_uring"."""
    count = options.intra_op_parallelism
    words = [
        f"{format_size(options.block_size)} x {options.queue_depth}",
        f"{count} worker{'s' if count > 1 else ''}",
        options.backend,
        *(["single_submit"] if options.single_submit else []),
        *([] if options.overlap_events else ["no overlap_events"]),
    ]
    return ", ".join(words)


def best_line(findings: Findings) -> str:
    """DeepSpeed's line; a direction that was not measured is "n/a"."""
    rates = {
        direction: f"{findings.bytes_per_second(direction, findings.both) / GIB:5.2f}"
        for direction in findings.final
    }
    read, write = (rates.get(direction, "n/a") for direction in DIRECTIONS)
    return f"Best performance (GB/sec): read = {read}, write = {write}"


def tables(findings: Findings) -> list[Table]:
    """The final of each direction, best first."""
    return [_table(findings, direction) for direction in findings.final]


def _table(findings: Findings, direction: str) -> Table:
    title = f"{direction}: medians of the final, GB = 1024^3 bytes"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("options")
    for name in ("GB/sec", "to default", "min..max", "CPU s/GB", "p50 ms", "p99 ms", "runs"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    table.add_column("which is")
    default = findings.entry(direction, findings.default)
    for entry in findings.final[direction]:
        rates = [sample.nbytes / sample.seconds / GIB for sample in entry.samples]
        roles = {
            f"best to {direction}": findings.best[direction],
            "best for both": findings.both if len(findings.final) > 1 else None,
            "default": findings.default,
        }
        table.add_row(
            in_words(entry.candidate),
            f"{entry.bytes_per_second / GIB:.2f}",
            f"{entry.score / default.score:.2f}",
            f"{min(rates):.2f}..{max(rates):.2f}",
            f"{entry.cpu_per_byte * GIB:.3f}",
            *(f"{latency_of(entry)[name] * 1e3:.3g}" for name in ("p50", "p99")),
            str(len(entry.samples)),
            ", ".join(role for role, options in roles.items() if options == entry.candidate),
        )
    return table


def latency_of(entry: Entry[HandleOptions]) -> dict[str, float]:
    """Seconds by the names of PERCENTILES: the median over the runs of each."""
    summaries: list[Mapping[str, float]] = [
        getattr(sample, "latency", {}) for sample in entry.samples
    ]
    return {
        name: statistics.median([summary.get(name, 0.0) for summary in summaries])
        for name in PERCENTILES
    }


def document(findings: Findings, **about: Any) -> dict[str, Any]:
    """Everything, as plain values: what --json writes and the report shows."""
    return {
        "format": "deepnvme tuning",
        "version": VERSION,
        **about,
        "notes": findings.notes,
        "default": findings.default.as_dict(),
        "both": findings.both.as_dict(),
        **aio_section(findings.both),
        "directions": {
            direction: {
                "best": findings.best[direction].as_dict(),
                "final": [_entry(entry) for entry in entries],
                "searches": [
                    {
                        "complete": ranking.complete,
                        "candidates": [_entry(entry) for entry in ranking.entries if entry.samples],
                    }
                    for ranking in findings.searches[direction].rankings
                ],
            }
            for direction, entries in findings.final.items()
        },
    }


def _entry(entry: Entry[HandleOptions]) -> dict[str, Any]:
    return {
        "options": entry.candidate.as_dict(),
        "bytes_per_second": entry.bytes_per_second,
        "score": entry.score,
        "cpu_seconds_per_gib": entry.cpu_per_byte * GIB,
        "latency_seconds": latency_of(entry),
        "halvings": entry.halvings,
        "mode": entry.samples[-1].mode,
        "runs": [
            {name: getattr(sample, name) for name in ("seconds", "nbytes", "cpu_seconds")}
            for sample in entry.samples
        ],
    }


def profile_of(findings: Findings, directories: tuple[str, ...], about: dict[str, Any]) -> Profile:
    """What is saved for the directories; ``about`` is the machine."""

    def optimum(direction: str) -> Optimum | None:
        options = findings.best.get(direction)
        if options is None:
            return None
        return Optimum(options, findings.bytes_per_second(direction, options))

    names = ("kernel", "cpu", "cores", "aio")
    return Profile(
        options=findings.both,
        read=optimum("read"),
        write=optimum("write"),
        directories=directories,
        drives=drives_of(directories),
        created=str(about["date"]),
        machine={name: about[name] for name in names},
    )
