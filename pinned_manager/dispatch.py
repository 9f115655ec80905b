"""Pinning and unpinning by whichever backend is selected, and asking what is pinned.

Each pinned tensor keeps to the backend that made it: unpin_memory() and is_pinned() are right
whatever DS_PIN_MEMORY_BACKEND says by then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from _deepnvme import pin as _pin
from pinned_manager import compiled, native, torch_backend
from pinned_manager.backends import selected_backend
from pinned_manager.pinnable import as_it_is, layout_of, require_layout, require_pinnable


def pin_memory(
    tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True
) -> torch.Tensor:
    """The tensor in page-locked memory, by the backend that DS_PIN_MEMORY_BACKEND selects.

    match_shape keeps the shape, and the strides where the tensor is dense; without it the result is
    flat, (numel,). make_copy=False leaves it uninitialised. What is pinned already is returned as
    it is. The torch backend does nothing on a host without an accelerator: it returns the tensor.
    In a compiled region the result always has memory of its own.

    Raises PinError when the memory cannot be locked; RuntimeError where native is selected and
    cannot be had; ValueError for another value of the variable; TypeError, ValueError or
    NotImplementedError for what has no plain host memory.
    """
    if is_dynamo_compiling():
        traced: torch.Tensor = compiled.pin_memory(tensor, make_copy, match_shape)
        return traced
    require_pinnable(tensor, make_copy)
    manager = native.get_active_native_pinned_memory()
    if is_pinned(tensor):
        pinned = as_it_is(tensor, match_shape)
        if pinned is not None:
            return pinned
    if manager is not None:
        return manager.pin_fresh(tensor, make_copy, match_shape)
    return torch_backend.pin(tensor, make_copy, match_shape)


@compiled.breaks_the_graph
def unpin_memory(tensor: torch.Tensor) -> bool | None:
    """Unpin what the native backend pinned: True if it was pinned, False the second time.

    It may be the tensor that pin_memory() gave, wherever its ``.data`` leads by now, or another
    that starts a region; a slice that starts inside gives False. Other references to the memory
    stay valid. What torch pins it unpins itself, when the storage goes: None, also for ordinary
    tensors while the torch backend is selected.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"only a torch.Tensor can be unpinned, not {type(tensor).__name__}")
    if native.unpin(tensor):
        return True
    if native.was_unpinned(tensor) or _pin.is_pinned(tensor):
        return False
    if torch_backend.is_pinned(tensor) or selected_backend() == "torch":
        return None
    return False


def is_pinned(buffer: Any) -> bool:
    """True when every byte that ``buffer`` reaches lies in one page-locked region, or torch's.

    ``buffer`` is a tensor or anything with the buffer protocol or DLPack. Raises TypeError for
    anything else.
    """
    if is_dynamo_compiling() and isinstance(buffer, torch.Tensor):
        unknown: bool = compiled.is_pinned(buffer) == 1
        return unknown
    return _pin.is_pinned(buffer) or torch_backend.is_pinned(buffer)


@compiled.breaks_the_graph
def pin_empty(
    *size: Any, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """A page-locked tensor, not initialised: ``pin_empty(2, 3)`` or ``pin_empty((2, 3))``.

    There is no second buffer: it takes once its size. Without a dtype it is torch's default. Raises
    ValueError for a device other than the CPU and for negative sizes, else as pin_memory().
    """
    _require_host(device)
    shape = native.shape_of(size)
    return _empty(shape, native.contiguous(shape), dtype or torch.get_default_dtype())


@compiled.breaks_the_graph
def pin_empty_like(
    tensor: torch.Tensor,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A page-locked tensor of the tensor's shape and dtype, not initialised.

    The tensor may be on any device, meta included. Strides are kept where it is dense. Raises as
    pin_empty().
    """
    _require_host(device)
    require_layout(tensor)
    return _empty(*layout_of(tensor), dtype or tensor.dtype)


def _empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if native.get_active_native_pinned_memory() is not None:
        return native.pinned_region(shape, strides, dtype)
    return torch_backend.empty(shape, strides, dtype)


def _require_host(device: torch.device | str) -> None:
    if str(device) not in ("cpu", "cpu:0"):
        raise ValueError(f"pinned memory is host memory: device is {device!r}, but must be 'cpu'")
