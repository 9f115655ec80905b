"""The tensor that a process moves: page-locked, of the accelerator, or on the accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from aio.ds_io.options import Options
from aio.pin_handle import pin_handle
from pinned_manager import get_accelerator, is_pinned, unpin_memory

_BLOCK = 16 << 20


@contextmanager
def host_buffer(nbytes: int, by_accelerator: bool) -> Iterator[torch.Tensor]:
    """A uint8 tensor in host memory, page-locked where that can be; given back at the end."""
    if by_accelerator:
        plain = torch.empty(nbytes, dtype=torch.uint8)
        tensor = get_accelerator().pin_memory(plain, make_copy=False)
        try:
            yield tensor
        finally:
            unpin_memory(tensor)
        return
    owner = pin_handle()
    tensor = owner.new_cpu_locked_tensor(nbytes, torch.empty(0, dtype=torch.uint8))
    try:
        yield tensor
    finally:
        owner.free_cpu_locked_tensor(tensor)


@contextmanager
def transfer_buffer(options: Options, device: int) -> Iterator[torch.Tensor]:
    """The tensor that is read into or written from, full of random bytes."""
    if options.gpu:
        name = get_accelerator().name
        tensor = torch.empty(options.io_size, dtype=torch.uint8, device=f"{name}:{device}")
        fill(tensor)
        yield tensor
        return
    with host_buffer(options.io_size, options.use_accelerator_pin_memory) as tensor:
        fill(tensor)
        yield tensor


def fill(tensor: torch.Tensor) -> None:
    """Random bytes, different from block to block; every page is present afterwards."""
    random = np.random.default_rng()
    block = torch.from_numpy(random.integers(0, 256, min(_BLOCK, len(tensor)), dtype=np.uint8))
    for number, start in enumerate(range(0, len(tensor), _BLOCK)):
        part = tensor[start : start + _BLOCK]
        part.copy_(block[: len(part)])
        part.bitwise_xor_(number % 256)


def describe(tensor: torch.Tensor) -> str:
    """Where the tensor lies, in words."""
    if not tensor.is_cpu:
        return f"on {tensor.device}, through page-locked blocks"
    if is_pinned(tensor):
        return "page-locked"
    return "not page-locked: there is no accelerator to pin it for"
