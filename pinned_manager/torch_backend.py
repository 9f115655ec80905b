"""The torch backend: pinning by the allocator that torch has for the accelerator of this process.

Without an accelerator there is none: pinning gives the tensor itself, which is not pinned and
counts no bytes.
"""

from __future__ import annotations

from typing import Any

import torch

from pinned_manager.accelerators import Accelerator, get_accelerator
from pinned_manager.accounting import note_torch_pin
from pinned_manager.pinnable import (
    as_it_is,
    fill,
    has_plain_memory,
    layout_of,
)


def pins_memory(accelerator: Accelerator) -> bool:
    """False on a host without an accelerator."""
    return accelerator.name != "cpu"


def pin(tensor: torch.Tensor, make_copy: bool, match_shape: bool) -> torch.Tensor:
    """A pinned tensor that was not pinned before; the tensor itself without an accelerator.

    torch may reserve more than the tensor's bytes.
    """
    accelerator = get_accelerator()
    if not pins_memory(accelerator):
        same = as_it_is(tensor, match_shape)
        return tensor.reshape(-1) if same is None else same
    if not (make_copy and match_shape):
        return pin_fresh(tensor, make_copy, match_shape)
    pinned = accelerator._torch_pin_memory(tensor)
    if pinned.numel():
        note_torch_pin(pinned)
    return pinned


def pin_fresh(tensor: torch.Tensor, make_copy: bool, match_shape: bool) -> torch.Tensor:
    """The same in memory of its own, whatever the tensor is; pinned with an accelerator."""
    pinned = empty(*layout_of(tensor, match_shape), tensor.dtype)
    return fill(pinned, tensor) if make_copy else pinned


def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that is not initialised, pinned where there is an accelerator."""
    accelerator = get_accelerator()
    pins = pins_memory(accelerator)
    pinned = torch.empty_strided(shape, strides, dtype=dtype, device="cpu", pin_memory=pins)
    if pins and pinned.numel():
        note_torch_pin(pinned)
    return pinned


def is_pinned(tensor: Any) -> bool:
    """True for what torch has pinned, whoever asked it to."""
    if not isinstance(tensor, torch.Tensor):
        return False
    accelerator = get_accelerator()
    if not pins_memory(accelerator) or not has_plain_memory(tensor):
        return False
    return accelerator._torch_is_pinned(tensor)
