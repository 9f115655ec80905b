"""Train a transformer whose optimizer states do not fit into the memory that it may use.

Three trainings, each a program of its own, on the same text: AdamW in memory without a limit, which
is the reference; the same under a limit that is smaller than its states, which it does not survive;
and `aio.swap.SwappedOptimizer` under that limit. The exit status is 0 if it survives with the same
losses, 1 if not, 2 if the demo could not run.

    python examples/finetune_beyond_memory.py --help
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from limited_training import OUT_OF_MEMORY, STATE_BYTES, number_of_parameters
from memory_limit import MemoryLimit, limited
from pipeline_chart import HOW_TO_INSTALL, can_draw, draw
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from train_with_nvme_states import default_directory, megabytes, positive, writable_directory

TRAINING = Path(__file__).with_name("limited_training.py")
SHARE = 0.85  # of the states: the limit, where none is given
# Else glibc keeps freed blocks of up to 32 MiB, and where live ones lie between them it cannot use
# them for larger ones: a third more memory in this program.
GIVES_BACK = {"MALLOC_MMAP_THRESHOLD_": "1048576"}


@dataclass
class Outcome:
    """How one training went."""

    losses: list[float] = field(default_factory=list)
    ended: str = ""  # why, if before its last step
    peak: int | None = None  # VmHWM, in bytes
    group_peak: int | None = None  # of the control group
    stats: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    """Run the demo; return the exit status."""
    parser = argument_parser()
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    try:
        count = number_of_parameters(options.dim, options.layers)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    states = count * STATE_BYTES
    limit = options.limit * 1_000_000 if options.limit else int(SHARE * states)
    console.print(
        f"[bold]Model[/]   {options.layers} layers, width {options.dim}: {count / 1e6:.1f} million "
        f"parameters in bfloat16\n"
        f"[bold]States[/]  {megabytes(states)}: float32 master and two moments of each\n"
        f"[bold]Limit[/]   {megabytes(limit)} for a whole process, Python and torch included"
    )
    if limit >= states:
        parser.error(f"the limit must be less than the states ({megabytes(states)})")
    try:
        with tempfile.TemporaryDirectory(prefix="deepnvme-demo-", dir=options.dir) as folder:
            free, killed, swapped = trainings(options, folder, limit, console)
    except RuntimeError as error:
        console.print(f"[bold red]{error}[/]")
        return 2
    console.print()
    console.print(summary(free, killed, swapped), soft_wrap=False)
    if swapped.stats:
        plot(swapped.stats["last_step"], options.plot, console)
    return verdict(free, killed, swapped, console)


def argument_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train a transformer under a memory limit that is below its optimizer states."
    )
    parser.add_argument("--steps", type=positive, default=6, help="training steps (6)")
    parser.add_argument("--batch", type=positive, default=1, help="rows of text in a step (1)")
    parser.add_argument("--dim", type=positive, default=1024, help="width of the model (1024)")
    parser.add_argument("--layers", type=positive, default=8, help="layers of the model (8)")
    parser.add_argument(
        "--limit",
        type=positive,
        help=f"of memory, in MB (1e6 bytes); default: {SHARE:.0%} of the states".replace("%", "%%"),
    )
    parser.add_argument(
        "--sub-group", type=positive, default=32, help="MiB of states moved together (32)"
    )
    parser.add_argument(
        "--no-cgroup", action="store_true", help="RLIMIT_DATA even where a cgroup is allowed"
    )
    parser.add_argument(
        "--dir",
        type=writable_directory,
        default=default_directory(),
        help="where to keep the states meanwhile, in a folder that is removed (%(default)s)",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        default=Path("pipeline.png"),
        help="the chart of the last step, .png or .svg (%(default)s); needs matplotlib",
    )
    return parser


def trainings(
    options: argparse.Namespace, folder: str, limit: int, console: Console
) -> tuple[Outcome, Outcome, Outcome]:
    """The three of them, one after another. RuntimeError where one fails for another reason."""
    settings = {
        "folder": folder,
        "steps": options.steps,
        "batch": options.batch,
        "dim": options.dim,
        "layers": options.layers,
        "sub_group_bytes": options.sub_group << 20,
    }
    groups = not options.no_cgroup
    console.print("\n[bold]1. AdamW in memory, without a limit[/]: the reference")
    free = train({**settings, "swapped": False}, limited(None, groups), console)

    place = limited(limit, groups)
    console.print(f"\n[bold]2. AdamW in memory, limited[/] by {place.how}")
    killed = train({**settings, "swapped": False}, place, console)
    console.print(
        f"Not survived: in step {len(killed.losses) + 1} {killed.ended}"
        if killed.ended
        else "[bold red]Survived[/]: the limit is no limit to it"
    )

    place = limited(limit, groups)
    console.print(f"\n[bold]3. SwappedOptimizer, limited[/] by {place.how}, in {folder}")

    def compared(number: int, loss: float) -> None:
        before = free.losses[number]
        same = "[green]same[/]" if loss == before else "[bold red]different[/]"
        console.print(
            f"step {number + 1:2}   loss in memory {before:.6f}   swapped {loss:.6f}   {same}"
        )

    return free, killed, train({**settings, "swapped": True}, place, console, compared)


def train(
    settings: dict[str, Any],
    place: MemoryLimit,
    console: Console,
    told: Callable[[int, float], None] = lambda step, loss: None,
) -> Outcome:
    """One training in a child process, behind a progress bar. ``told(step, loss)`` after each."""
    outcome = Outcome()
    with contextlib.ExitStack() as stack:
        stack.callback(place.end)
        errors = stack.enter_context(tempfile.TemporaryFile("w+"))
        child = stack.enter_context(
            subprocess.Popen(
                [*place.command, sys.executable, str(TRAINING), json.dumps(settings)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **GIVES_BACK},
            )
        )
        stack.callback(child.kill)
        progress = stack.enter_context(Progress(console=console))
        bar = progress.add_task("training", total=settings["steps"])
        for answer in answers(child):
            if "loss" in answer:
                told(len(outcome.losses), answer["loss"])
                outcome.losses.append(answer["loss"])
                progress.advance(bar)
            elif "failed" in answer:
                outcome.ended = f"an allocation failed: {answer['failed']}"
            else:
                outcome.peak, outcome.stats = answer["peak"], answer["stats"] or {}
        status = child.wait()
        if status == -9:
            outcome.ended = "the kernel killed it (SIGKILL)"
        elif status not in (0, OUT_OF_MEMORY):
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"a training ended with status {status}: {last[0]}")
        outcome.group_peak = place.peak()
    return outcome


def answers(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Lines of JSON, until the child ends."""
    if child.stdout is not None:
        for line in child.stdout:
            yield json.loads(line)


def summary(free: Outcome, killed: Outcome, swapped: Outcome) -> Table:
    """The memory that each has used."""
    table = Table(title="Memory at most", title_justify="left")
    for name in ("optimizer", "steps", "VmHWM", "control group"):
        table.add_column(name, no_wrap=True, justify="left" if name == "optimizer" else "right")
    rows = {"in memory": free, "in memory, limited": killed, "swapped, limited": swapped}
    for name, outcome in rows.items():
        peaks = [megabytes(n) if n else "-" for n in (outcome.peak, outcome.group_peak)]
        table.add_row(name, str(len(outcome.losses)), *peaks)
    return table


def plot(last_step: dict[str, Any], path: Path, console: Console) -> None:
    """The chart of a step, where it can be made."""
    if not can_draw():
        console.print(HOW_TO_INSTALL)
        return
    groups = len({span["sub_group"] for span in last_step["spans"]})
    moved = last_step["bytes_read"] + last_step["bytes_written"]
    seconds = last_step["seconds"]
    draw(
        last_step["spans"],
        path,
        f"One step: {groups} sub-groups, {megabytes(moved)} read and written in {seconds:.2f} s",
    )
    console.print(f"The pipeline of the last step: {path}")


def verdict(free: Outcome, killed: Outcome, swapped: Outcome, console: Console) -> int:
    """Say what it shows; return the exit status."""
    if swapped.ended:
        console.print(f"[bold red]Not survived by the swapped one[/]: {swapped.ended}")
        return 1
    if not killed.ended or swapped.losses != free.losses:
        console.print("[bold red]Not shown[/]: see above")
        return 1
    console.print("[bold green]Survived with the same losses[/], each step, bit for bit.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
