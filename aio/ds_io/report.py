"""What ds_io prints: what was measured and how, then DeepSpeed's result lines; and its JSON.

GB in the result lines is 1024^3 bytes, as DeepSpeed has it. "Task" takes each process's own time
and "E2E" the time from the first start to the last end of each loop, both summed over the loops.
"""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import aio
from aio.drives import mount_of
from aio.ds_io import options as arguments
from aio.ds_io.options import FAST, TORCH, Options
from aio.ds_io.run import Loop, Outcome
from aio.measure import machine
from aio.measure.harness import GB, compare
from aio.measure.sizes import GIB, format_size
from aio.measure.transfers import MEMORY_FILE_SYSTEMS, PATHS, in_words

SCHEMA = 1
_FILES = {
    "existing": "existing, its page cache dropped before each loop",
    "fresh": "fresh: each loop writes a file that was not there",
    "overwrite": "overwrite: each loop writes over the blocks of the last one",
}


def lines(outcome: Outcome) -> list[str]:
    """The whole report."""
    options, results = outcome.options, as_results(outcome)
    text = [
        f"ds_io {aio.__version__}: {options.direction} {format_size(options.io_size)}, "
        f"processes: {len(options.folders)}, loops: {options.warmup_loops} to warm up, "
        f"then {options.loops}",
        *(
            f"[{rank}]: process {rank} <----> {folder} ({_file_system(folder)})"
            for rank, folder in enumerate(options.folders)
        ),
        f"engine      {_engine(options)}",
        f"path        {results['path']}",
        f"file        {results['file']}",
    ]
    if options.reading:
        text.append(f"page cache  {results['cached']:.1%} of the file before each read, at most")
    else:
        text.append(f"durability  {_durability(outcome)}")
    text += [
        f"memory      {results['memory']}",
        f"bytes       {results['bytes']} completed of {results['bytes_asked']} asked"
        f"{', every one compared' if options.validate else ''}",
        f"counted     {results['loops']} loops, E2E {_spread(outcome)}, "
        f"{results['cpu_seconds'] / (results['bytes'] / GIB):.3f} CPU s/GB",
        "unit        GB = 1024^3 bytes (GiB)",
    ]
    name = options.direction.capitalize()
    for kind in ("task", "e2e"):
        label = f"{kind.capitalize() if kind == 'task' else 'E2E'} {name}"
        text.append(f"{label} Latency = {results[kind]['seconds']} sec")
        text.append(f"{label} Speed = {results[kind]['gib_per_second']} GB/sec")
    return text + _fio_lines(outcome)


def as_results(outcome: Outcome) -> dict[str, Any]:
    """The figures of the counted loops: bytes, seconds, GiB per second, and what they are of."""
    options, loops = outcome.options, outcome.counted
    nbytes = sum(loop.nbytes for loop in loops)
    ranks = range(len(options.folders))
    own = [sum(loop.parts[rank].seconds for loop in loops) for rank in ranks]
    shared = sum(loop.seconds for loop in loops)
    moved = {path: sum(loop.moved[path] for loop in loops) for path in PATHS}
    cached = [part.cached for loop in loops for part in loop.parts if part.cached is not None]
    return {
        "path": _path(options, moved),
        "bytes_by_path": moved,
        "file": _files(loops),
        "cached": max(cached, default=None),
        "memory": "; ".join(dict.fromkeys(part.memory for part in loops[0].parts)),
        "loops": len(loops),
        "bytes": nbytes,
        "bytes_asked": options.io_size * len(loops) * len(options.folders),
        "validated": options.validate,
        "cpu_seconds": sum(part.cpu_seconds for loop in loops for part in loop.parts),
        "task": {"seconds": max(own), "gib_per_second": nbytes / GIB / max(own)},
        "e2e": {"seconds": shared, "gib_per_second": nbytes / GIB / shared},
    }


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Everything that was measured and how, with every loop; sizes in bytes, times in seconds."""
    options = outcome.options
    return {
        "schema": SCHEMA,
        "machine": machine.describe("ds_io"),
        "folders": [machine.describe_folder(folder) for folder in dict.fromkeys(options.folders)],
        "options": arguments.as_json(options),
        "operation": options.direction,
        "results": {**as_results(outcome), "durability": _durability(outcome)},
        "loops": [_loop_json(loop) for loop in outcome.loops],
        "latency": [part.latency for part in outcome.loops[-1].parts],
        "fio": _fio_json(outcome),
    }


def _loop_json(loop: Loop) -> dict[str, Any]:
    return {
        "counted": loop.counted,
        "seconds": loop.seconds,
        "bytes": loop.nbytes,
        "processes": [
            {
                "seconds": part.seconds,
                "bytes": part.nbytes,
                "bytes_by_path": part.moved,
                "cpu_seconds": part.cpu_seconds,
                "file": part.file,
                "cached": part.cached,
            }
            for part in loop.parts
        ],
    }


def _fio_lines(outcome: Outcome) -> list[str]:
    found = _fio_json(outcome)
    if found is None:
        return []
    rate = found["median_gib_per_second"]
    return [
        f"fio {found['direction']}, {found['engine']}, {found['path']}, in turn with ds_io: "
        f"median {rate} GB/sec",
        f"ds_io / fio = {found['ratio']['of_medians']:.3f} (ratio of medians), "
        f"{found['ratio']['median_of_rounds']:.3f} (median of the loops' ratios)",
    ]


def _fio_json(outcome: Outcome) -> dict[str, Any] | None:
    if outcome.fio is None:
        return None
    ours, fios = outcome.series["ds_io"], outcome.series["fio"]
    ratio = compare(ours.rates(), fios.rates())
    return {
        "version": outcome.fio.version,
        "direction": outcome.options.direction,
        "engine": outcome.fio.engine,
        "path": outcome.fio.mode,
        "median_gib_per_second": fios.median_rate() * GB / GIB,
        "ratio": dataclasses.asdict(ratio),
        "loops": [dataclasses.asdict(sample) for sample in fios.kept],
    }


def _engine(options: Options) -> str:
    if options.engine == TORCH:
        return f"torch_io: torch.{'load' if options.reading else 'save'}"
    on = f"{options.engine} on {options.backend}"
    overlap = "off" if options.sequential_requests else "on"
    single = "on" if options.single_submit else "off"
    buffer = f", buffer {format_size(options.fast_io_size)}" if options.engine == FAST else ""
    return (
        f"{on}: block_size {format_size(options.block_size)}, queue_depth {options.queue_depth}, "
        f"io_parallel {options.io_parallel}, single_submit {single}, overlap_events {overlap}"
        f"{buffer}"
    )


def _path(options: Options, moved: dict[str, int]) -> str:
    """How the bytes went, in words; in memory there is no drive behind any path."""
    kinds = {mount_of(folder)[0] for folder in options.folders}
    note = f" ({', '.join(sorted(kinds))}: memory, no drive)" if kinds & MEMORY_FILE_SYSTEMS else ""
    return in_words(moved) + note


def _files(loops: list[Loop]) -> str:
    states = [part.file for loop in loops for part in loop.parts]
    if len(set(states)) == 1:
        return _FILES[states[0]]
    return "fresh in the first loop, overwrite in the others"


def _durability(outcome: Outcome) -> str:
    """What holds of written bytes when the clock stops."""
    options = outcome.options
    if options.reading:
        return "a read"
    if options.fsync or options.engine == TORCH:
        return "each write ends with fsync, inside the time"
    if any(loop.moved["buffered"] for loop in outcome.counted):
        return "some bytes went through the page cache: each write ends with fsync, inside the time"
    return "past the page cache; no fsync: the drive's own cache may hold bytes (see --fsync)"


def _spread(outcome: Outcome) -> str:
    rates = [loop.nbytes / GIB / loop.seconds for loop in outcome.counted]
    return f"median {statistics.median(rates):.3f}, {min(rates):.3f} to {max(rates):.3f} GB/sec"


def _file_system(folder: Path) -> str:
    kind, source = mount_of(folder)
    return f"{kind} on {source}"
