"""`python -m tests.soak --minutes 10`: exit status 1 if one byte differs from the model."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from tests.soak.worker import Tally, work

SMALL_DRIVE = 6 << 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="how long (default 10)")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="on the drive to use")
    parser.add_argument("--seed", type=int, default=None, help="repeats a run's draws")
    parser.add_argument("--processes", type=int, default=2, help="default 2")
    return parser.parse_args()


def small_drive(undo: ExitStack, point: Path) -> Path | None:
    """A tmpfs that fills up, where mounting is possible."""
    point.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return None
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DRIVE}", "none", str(point)]
    if subprocess.run(mount, capture_output=True, timeout=60, check=False).returncode != 0:
        return None
    undo.callback(subprocess.run, ["umount", "--lazy", str(point)], timeout=60, check=False)
    return point


def run(options: argparse.Namespace, seed: int) -> tuple[Tally, list[str]]:
    """The sum of all processes, and which of them ended badly."""
    context = multiprocessing.get_context("spawn")
    total = Tally()
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory("", "soak-", options.dir)))
        small = small_drive(undo, folder / "small")
        report = context.Queue()
        workers = [
            context.Process(
                target=work, args=(folder, small, seed + n, 60 * options.minutes, report)
            )
            for n in range(options.processes)
        ]
        for worker in workers:
            worker.start()
        running = len(workers)
        bar = undo.enter_context(
            tqdm(total=round(60 * options.minutes), unit="s", desc="soak", mininterval=1)
        )
        started = time.monotonic()
        while running:
            tally = report.get(timeout=300)
            if tally is None:
                running -= 1
                continue
            total.add(tally)
            bar.n = min(bar.total, int(time.monotonic() - started))
            bar.set_postfix_str(
                f"{total.operations} operations, {total.nbytes / 1e9:.1f} GB, "
                f"{total.errors.total()} expected errors, {len(total.differences)} differences",
                refresh=False,
            )
            bar.update(0)
        for worker in workers:
            worker.join(60)
    bad = [f"process {n} ended with {w.exitcode}" for n, w in enumerate(workers) if w.exitcode]
    return total, bad


def main() -> int:
    options = arguments()
    seed = int(time.time()) if options.seed is None else options.seed
    total, bad = run(options, seed)
    print(f"seed         {seed}")
    print(f"operations   {total.operations}")
    print(f"bytes        {total.nbytes}")
    print("faults      ", dict(total.faults))
    print("errors seen ", dict(total.errors))
    print(f"differences  {len(total.differences)}")
    for line in [*total.differences[:20], *bad]:
        print(line)
    return 1 if total.differences or bad or not total.operations else 0


if __name__ == "__main__":
    sys.exit(main())
