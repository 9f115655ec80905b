"""One training of a transformer in bfloat16, as a program whose memory can be limited.

Its states are three float32 numbers for each parameter: a master and AdamW's two moments. They are
in memory, or on disk. Prints a line of JSON for each step, and one at the end.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from char_transformer import CharTransformer, batches, standard_library_text

from aio.swap import SwappedOptimizer

SEED = 2024
STATE_BYTES = 12  # of a parameter
OPTIONS: dict[str, Any] = {"lr": 3e-4, "fused": True}
OUT_OF_MEMORY = 3  # exit status


class Optimizer(Protocol):
    """What the training loop asks of an optimizer."""

    def step(self) -> Any:
        """Update the parameters."""


class InMemory:
    """AdamW on float32 masters in memory, a parameter at a time, to need as little as possible."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self._parts = []
        for parameter in parameters:
            master = torch.nn.Parameter(parameter.detach().float())
            self._parts.append((parameter, master, torch.optim.AdamW([master], **OPTIONS)))

    @torch.no_grad()
    def step(self) -> None:
        for parameter, master, optimizer in self._parts:
            if parameter.grad is None:
                continue
            master.grad = parameter.grad.float()
            optimizer.step()
            parameter.copy_(master)
            master.grad = None


def main() -> None:
    """Train as ``sys.argv[1]`` says, in JSON. Exit status 3 where an allocation fails."""
    options = json.loads(sys.argv[1])
    try:
        train(**options)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):
            raise
        tell({"failed": str(error).splitlines()[0]})
        sys.exit(OUT_OF_MEMORY)


def train(
    swapped: bool, folder: str, steps: int, batch: int, dim: int, layers: int, sub_group_bytes: int
) -> None:
    text = standard_library_text()
    torch.manual_seed(SEED)
    torch.set_default_dtype(torch.bfloat16)  # the model is made in it, and never larger
    model = CharTransformer(len(text.alphabet), dim=dim, layers=layers)
    parameters = list(model.parameters())
    with contextlib.ExitStack() as stack:
        optimizer: Optimizer
        if swapped:
            on_disk = stack.enter_context(
                SwappedOptimizer(
                    model.named_parameters(),
                    torch.optim.AdamW,
                    swap_dir=folder,
                    sub_group_bytes=sub_group_bytes,
                    master_weights=True,
                    **OPTIONS,
                )
            )
            optimizer = on_disk
        else:
            optimizer = InMemory(parameters)
        for codes, targets in batches(text, steps=steps, batch=batch, seed=SEED):
            model.zero_grad()
            loss = model(codes, targets)
            loss.backward()
            optimizer.step()
            tell({"loss": loss.item()})
        tell({"peak": peak_bytes(), "stats": on_disk.stats() if swapped else None})


def number_of_parameters(dim: int, layers: int) -> int:
    """Of the model, without making it."""
    with torch.device("meta"):
        model = CharTransformer(len(standard_library_text().alphabet), dim=dim, layers=layers)
    return sum(parameter.numel() for parameter in model.parameters())


def peak_bytes() -> int:
    """Of the memory that this process has used at once: VmHWM."""
    lines: Iterator[str] = iter(Path("/proc/self/status").read_text().splitlines())
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def tell(what: dict[str, Any]) -> None:
    """A line of JSON on standard output."""
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
