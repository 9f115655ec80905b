"""Measure `aio` on a directory, in turn with fio and with the peers that are installed."""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from aio.measure import fio, machine
from aio.measure.files import work_folder
from aio.measure.harness import BenchError
from aio.measure.sizes import parse_size

from . import (
    block_sizes,
    deepspeed_peer,
    deepspeed_step,
    fresh_write,
    large_tensor,
    many_files,
    mixed_state,
    optimizer_step,
    peers,
    pinning,
    plot,
    report,
    small_ops,
    tracing,
)
from .context import BLOCK_SIZE, QUEUE_DEPTH, Context
from .results import Result

BENCHMARKS: dict[str, Callable[[Context], Result]] = {
    "large_tensor": large_tensor.run,
    "block_sizes": block_sizes.run,
    "fresh_write": fresh_write.run,
    "many_files": many_files.run,
    "mixed_state": mixed_state.run,
    "small_ops": small_ops.run,
    "tracing": tracing.run,
    "optimizer_step": optimizer_step.run,
    "peers": peers.run,
    "deepspeed_step": deepspeed_step.run,
    "pinning": pinning.run,
}

# These measure the machine, not the directory: once is enough.
WITHOUT_FILES = {"pinning"}

# Files of two large tensors' size and the many small ones lie there at once, at most.
_ROOM = 1 << 29


def size(text: str) -> int:
    """Bytes of "64K", "256M", "1G" or a plain number; binary units, a whole number of 4 MiB."""
    try:
        nbytes = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if nbytes % (4 << 20):
        raise argparse.ArgumentTypeError(f"{text}: must be a multiple of 4 MiB")
    return nbytes


def names(text: str) -> list[str]:
    """Comma-separated benchmark names."""
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in BENCHMARKS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown {unknown}; there are {', '.join(BENCHMARKS)}")
    return chosen


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--dir", dest="dirs", action="append", type=Path, required=True, metavar="DIR",
        help="a directory on the file system to measure; may be given several times",
    )  # fmt: skip
    parser.add_argument("--only", type=names, default=list(BENCHMARKS), metavar="NAME,...")
    parser.add_argument("--quick", action="store_true", help="a smaller run, under 40 seconds")
    parser.add_argument("--size", type=size, help="bytes of the large tensor (1G; 256M if quick)")
    parser.add_argument("--rounds", type=int, help="rounds of each comparison (3; 2 if quick)")
    parser.add_argument("--json", type=Path, help="where the JSON goes (benchmarks/results/)")
    parser.add_argument("--png", type=Path, metavar="DIR", help="where a PNG of each table goes")
    parser.add_argument(
        "--deepspeed-python", metavar="PYTHON",
        help="an interpreter that has deepspeed, if this one has not",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.deepspeed_python and shutil.which(options.deepspeed_python) is None:
        parser.error(f"--deepspeed-python: {options.deepspeed_python} is no program")
    if options.png is not None and (reason := plot.missing()):
        parser.error(f"--png: {reason}")
    options.size = options.size or ((256 << 20) if options.quick else (1 << 30))
    options.rounds = options.rounds or (2 if options.quick else 3)
    return options


def measure(
    options: argparse.Namespace, directory: Path, chosen: list[str], console: Console
) -> dict[str, Any]:
    """The chosen benchmarks on one directory; an error ends that benchmark only."""
    directory.mkdir(parents=True, exist_ok=True)
    needed = 2 * options.size + _ROOM
    if shutil.disk_usage(directory).free < needed:
        raise BenchError(f"{directory}: needs {needed / 1e9:.1f} GB free")
    about = machine.describe_folder(directory)
    console.print(f"\n[bold]{directory}[/bold] {escape(str(about))}", highlight=False)
    with console.status("starting DeepSpeed, whose first start compiles its operator"):
        peer, missing = deepspeed_peer.start(options.deepspeed_python, BLOCK_SIZE, QUEUE_DEPTH)
    results = []
    try:
        for name in chosen:
            started = time.monotonic()
            with (
                console.status(name) as status,
                work_folder(directory, "deepnvme-bench-") as folder,
            ):
                context = Context(
                    folder=folder,
                    file_system=about["file_system"],
                    size=options.size,
                    rounds=options.rounds,
                    attempts=1 if options.quick else 2,
                    quick=options.quick,
                    deepspeed=peer,
                    deepspeed_missing=missing,
                    progress=functools.partial(_progress, status, name),
                )
                result = _attempt(name, context)
            report.show(console, result)
            if name == "peers":
                console.print(escape(report.markdown(result)), soft_wrap=True, highlight=False)
            if options.png is not None:
                where = f"{about.get('device', '')} {about['file_system']}".strip()
                for path in plot.draw(result, options.png, where):
                    console.print(f"drawn: {path}", style="dim", soft_wrap=True)
            console.print(f"{name} took {time.monotonic() - started:.0f} s", style="dim")
            results.append(result)
    finally:
        if peer is not None:
            peer.close()
    verdicts = [verdict for result in results for verdict in result.verdicts]
    if verdicts:
        console.rule(f"[bold]Targets, {directory}[/bold]", align="left")
        console.print(report.verdict_table(verdicts))
    return {
        **about,
        "deepspeed": peer.version if peer else missing,
        "benchmarks": [report.as_json(result) for result in results],
    }


def _progress(status: Status, name: str, text: str) -> None:
    status.update(f"{name}: {text}")


def _attempt(name: str, context: Context) -> Result:
    try:
        return BENCHMARKS[name](context)
    except (BenchError, OSError, MemoryError) as error:
        return Result(name, name, error=f"{type(error).__name__}: {error}")
    finally:
        if context.deepspeed is not None:
            context.deepspeed.forget()


def main() -> int:
    """Run, print, write the JSON. Returns 1 if any benchmark was aborted."""
    options = parse()
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    if fio.version() is None:
        console.print("fio is missing: apt-get install fio", style="bold red")
        return 1
    about = machine.describe("python -m benchmarks")
    console.print(about, highlight=False)
    report.warn_if_busy(console, about["load_average"][0], about["cores"])
    start = time.monotonic()
    directories = []
    try:
        for number, directory in enumerate(options.dirs):
            chosen = [n for n in options.only if number == 0 or n not in WITHOUT_FILES]
            directories.append(measure(options, directory, chosen, console))
    except BenchError as error:
        console.print(str(error), style="bold red")
        return 1
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    path = options.json or Path(__file__).with_name("results") / f"{stamp}.json"
    report.write_json(path, about, directories)
    console.print(f"{time.monotonic() - start:.0f} s; every sample is in {path}")
    failed = [b for d in directories for b in d["benchmarks"] if b["error"]]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
