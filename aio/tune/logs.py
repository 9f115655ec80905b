"""Logs in DeepSpeed's form: a file for each combination, whose name says which and whose lines say
how fast, so that tools for DeepSpeed's logs read them.
"""

from __future__ import annotations

from pathlib import Path

from aio.measure.sizes import GIB
from aio.options import HandleOptions
from aio.tune.search import Entry
from aio.tune.session import Findings

FOLDERS = {"read": "_aio_bench_read_logs", "write": "_aio_bench_write_logs"}


def write_logs(folder: Path, findings: Findings, directories: int) -> None:
    """A folder for each direction. Of engines that differ in nothing else the faster is logged,
    since DeepSpeed's names have no place for an engine. Raises OSError.
    """
    for direction, search in findings.searches.items():
        place = folder / FOLDERS[direction]
        place.mkdir(parents=True, exist_ok=True)
        entries = [entry for ranking in search.rankings for entry in ranking.entries]
        chosen: dict[str, Entry[HandleOptions]] = {}
        for entry in entries + findings.final[direction]:
            name = _name(direction, entry.candidate, directories)
            if entry.samples and (
                name not in chosen
                or chosen[name].candidate == entry.candidate  # the final has the last word
                or chosen[name].bytes_per_second < entry.bytes_per_second
            ):
                chosen[name] = entry
        for name, entry in chosen.items():
            (place / name).write_text(_text(direction, entry))


def _name(direction: str, options: HandleOptions, directories: int) -> str:
    size = options.block_size
    block = f"{size >> 20}M" if size % (1 << 20) == 0 else f"{size >> 10}K"
    if size % 1024:
        block = str(size)
    parts = (
        direction,
        "single" if options.single_submit else "block",
        "overlap" if options.overlap_events else "sequential",
        f"ftd{directories}",
        f"d{options.queue_depth}",
        f"bs{block}",
        f"p{options.intra_op_parallelism}",
    )
    return "_".join(parts) + ".txt"


def _text(direction: str, entry: Entry[HandleOptions]) -> str:
    lines = [f"engine {entry.candidate.backend}; GB = 1024^3 bytes; {entry.samples[-1].mode}"]
    for number, sample in enumerate(entry.samples, 1):
        rate = sample.nbytes / sample.seconds / GIB
        lines.append(f"run {number}: {sample.nbytes} bytes in {sample.seconds} sec, {rate} GB/sec")
    name = direction.title()
    lines.append(f"E2E {name} Speed = {entry.bytes_per_second / GIB} GB/sec")
    return "\n".join(lines) + "\n"
