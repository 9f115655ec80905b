"""Train a transformer twice, once with AdamW's moments in memory and once with them on disk.

Both trainings start from the same seed and see the same text. If every byte of the moments comes
back from the disk as it went there, they end with the same parameters and moments, bit for bit:
that is checked, and the exit status says it (0 equal, 1 not equal, 2 could not run).

    python examples/train_with_nvme_states.py --help
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from char_transformer import CONTEXT, CharTransformer, Text, batches, standard_library_text
from nvme_states import MOMENTS, NvmeAdamW
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import aio

SEED = 2024
BATCH = 6
LEARNING_RATE = 1e-3
PATHS = {
    "fixed": "no copy, memory known to kernel",
    "direct": "no copy",
    "staged": "one copy, through an aligned block",
    "buffered": "through the page cache",
}


class Optimizer(Protocol):
    """What the training loop asks of an optimizer: torch's and ours both have it."""

    def step(self) -> Any:
        """Update the parameters."""

    def zero_grad(self) -> Any:
        """Forget the gradients."""


@dataclass
class Comparison:
    """How many tensors were compared as bytes, and the names of those that differ."""

    parameters: int
    moments: int
    different: list[str]


def main() -> int:
    """Run the demo; return the exit status."""
    parser = argument_parser()
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    torch.use_deterministic_algorithms(True)
    # One processor is for the handle's worker: torch's threads spin until the slowest is done.
    torch.set_num_threads(max(1, torch.get_num_threads() - 1))
    try:
        handle = aio.aio_handle(options.block_size, options.queue_depth, backend=options.backend)
        text = standard_library_text()
        model_in_memory = new_model(text, options)
        model_on_disk = new_model(text, options)
    except (ValueError, RuntimeError, FileNotFoundError) as error:
        parser.error(str(error))

    size = sum(p.numel() for p in model_in_memory.parameters())
    console.print(
        f"[bold]Text[/]   {len(text.codes):,} characters of Python's standard library, "
        f"{len(text.alphabet)} different\n"
        f"[bold]Model[/]  {options.layers} layers, width {options.dim}, context {CONTEXT}: "
        f"{size / 1e6:.2f} million parameters\n\n"
        f"[bold]1. AdamW in memory[/]: torch.optim.AdamW, the reference"
    )
    in_memory = torch.optim.AdamW(model_in_memory.parameters(), lr=LEARNING_RATE)
    losses = list(train(model_in_memory, in_memory, text, options.steps, console))
    try:
        # The handle is the inner one: it finishes its requests before their files are removed.
        with (
            tempfile.TemporaryDirectory(prefix="deepnvme-demo-", dir=options.dir) as folder,
            handle,
        ):
            console.print(f"\n[bold]2. AdamW with its moments on disk[/], in {folder}")
            on_disk = NvmeAdamW(model_on_disk.parameters(), handle, Path(folder), lr=LEARNING_RATE)
            resident = 0
            steps = train(model_on_disk, on_disk, text, options.steps, console)
            for number, (loss, before) in enumerate(zip(steps, losses, strict=True), 1):
                resident = max(resident, on_disk.bytes_in_optimizers())
                console.print(
                    f"step {number:3}   loss in memory {before:.6f}   on disk {loss:.6f}   "
                    + ("[green]same[/]" if loss == before else "[bold red]different[/]")
                )
            # Taken before the comparison, which reads everything once more.
            table = summary(on_disk, resident, handle.stats(), aio.pinned_stats())
            comparison = compare(model_in_memory, in_memory, model_on_disk, on_disk)
            on_disk.close()
    except aio.AioError as error:
        console.print(f"[bold red]A transfer failed:[/] {error}")
        return 2
    console.print()
    console.print(table, soft_wrap=False)
    return tell(comparison, console)


def argument_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Train a small transformer with AdamW's moments on disk, and check every bit."
    )
    parser.add_argument("--steps", type=positive, default=30, help="training steps (30)")
    parser.add_argument("--dim", type=positive, default=256, help="width of the model (256)")
    parser.add_argument("--layers", type=positive, default=4, help="layers of the model (4)")
    parser.add_argument(
        "--dir",
        type=writable_directory,
        default=default_directory(),
        help="where to keep the moments meanwhile, in a folder that is removed (%(default)s)",
    )
    parser.add_argument(
        "--backend",
        choices=["auto", "io_uring", "libaio", "posix"],
        help="which engine moves the bytes (DEEPNVME_BACKEND, or the best one here)",
    )
    parser.add_argument(
        "--block-size", type=positive, default=1 << 20, help="bytes per transfer (1048576)"
    )
    parser.add_argument(
        "--queue-depth", type=positive, default=128, help="transfers in flight at most (128)"
    )
    return parser


def positive(text: str) -> int:
    """A command-line number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text!r}")
    return int(text)


def writable_directory(text: str) -> Path:
    """A command-line path of a directory that files can be made in."""
    path = Path(text)
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"must be a directory to write to, got {text!r}")
    return path


def default_directory() -> str:
    """A temporary directory on a drive: /tmp is often memory, /var/tmp is not."""
    return "/var/tmp" if os.access("/var/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()


def new_model(text: Text, options: argparse.Namespace) -> CharTransformer:
    """The same initial weights at every call."""
    torch.manual_seed(SEED)
    return CharTransformer(len(text.alphabet), dim=options.dim, layers=options.layers)


def train(
    model: CharTransformer, optimizer: Optimizer, text: Text, steps: int, console: Console
) -> Iterator[float]:
    """Train behind a progress bar, on the same batches at every call; yield each step's loss."""
    data = batches(text, steps=steps, batch=BATCH, seed=SEED)
    for codes, targets in track(data, "training", total=steps, console=console):
        optimizer.zero_grad()
        loss = model(codes, targets)
        loss.backward()
        optimizer.step()
        yield loss.item()


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Compare bytes: unlike ==, this tells 0.0 from -0.0 and finds a NaN equal to itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(
        one.detach().reshape(-1).view(torch.uint8), other.detach().reshape(-1).view(torch.uint8)
    )


def compare(
    model_in_memory: CharTransformer,
    in_memory: torch.optim.AdamW,
    model_on_disk: CharTransformer,
    on_disk: NvmeAdamW,
) -> Comparison:
    """Compare all parameters, and the moments in memory with those read back from the files."""
    result = Comparison(0, 0, [])
    twins = dict(zip(model_on_disk.parameters(), model_in_memory.named_parameters(), strict=True))
    for parameter, (name, twin) in twins.items():
        result.parameters += 1
        if not same_bits(parameter, twin):
            result.different.append(name)
    for parameter, moment_name, moment in on_disk.read_moments():
        name, twin = twins[parameter]
        result.moments += 1
        if not same_bits(moment, in_memory.state[twin][moment_name]):
            result.different.append(f"{moment_name} of {name}")
    return result


def summary(
    on_disk: NvmeAdamW, resident: int, stats: Mapping[str, Any], pinned: Mapping[str, Any]
) -> Table:
    """What moved, how fast, by which way, and what memory it took."""
    table = Table(title="Swapping AdamW's moments", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    buffers = f"{len(on_disk.buffers)} buffers; at most {megabytes(pinned['peak'])}"
    if not all(on_disk.handle.is_pinned(buffer) for buffer in on_disk.buffers):
        buffers = "the limit (ulimit -l) is too low: buffers in ordinary memory"
    table.add_row("moments on disk", megabytes(on_disk.bytes_on_disk()), " and ".join(MOMENTS))
    table.add_row("  in memory between steps", megabytes(resident))
    table.add_row("memory page-locked", megabytes(pinned["in_use"]), buffers)
    table.add_section()
    rate = on_disk.bytes_moved / on_disk.seconds_in_flight / 1e9
    table.add_row("bytes read and written", megabytes(on_disk.bytes_moved), "moments only")
    table.add_row(
        "time in I/O", f"{on_disk.seconds_in_flight:.2f} s", "submission to end of wait()"
    )
    table.add_row("  inside wait()", f"{on_disk.seconds_waiting:.2f} s", "AdamW ran in the rest")
    table.add_row("swap traffic", f"[bold green]{rate:.2f} GB/s[/]", "those bytes in that time")
    table.add_section()
    table.add_row("engine", str(stats["backend"]), f"{stats['retries']} retries")
    for path, meaning in PATHS.items():
        moved = sum(stats["bytes"][direction][path] for direction in ("read", "write"))
        if moved:
            table.add_row(f"  {path}", megabytes(moved), meaning)
    return table


def megabytes(nbytes: int) -> str:
    """Decimal megabytes, or bytes where there are few."""
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 100_000 else f"{nbytes:,} bytes"


def tell(comparison: Comparison, console: Console) -> int:
    """Say whether the two trainings agree; return the exit status."""
    counts = f"{comparison.parameters} parameters and {comparison.moments} moments"
    if comparison.different:
        names = ", ".join(comparison.different[:4])
        console.print(
            f"[bold red]NOT EQUAL[/]: of {counts}, {len(comparison.different)} differ: {names}, ..."
        )
        return 1
    console.print(f"[bold green]Equal bit for bit[/]: {counts}, in memory and on disk.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
