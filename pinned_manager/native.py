"""The native backend: tensors pinned through the registry of the process.

A pinned tensor object remembers the region that was pinned for it, so that unpin() finds that one
after ``.data`` of the object was redirected. It does so in a table beside the tensor, not in an
attribute: attributes are copied by deepcopy and torch.save, and a region has one owner. The entry
keeps the region alive; it goes with the object, or with unpin().
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from _deepnvme import pin as _pin
from pinned_manager.accounting import current_tag
from pinned_manager.backends import require_native, selected_backend
from pinned_manager.locked_tensor import free_locked_tensor, new_locked_tensor
from pinned_manager.pinnable import as_it_is, fill, layout_of, require_pinnable

DEFAULT_TAG = "pin_memory"

# A pinned tensor object: a tensor that holds the region which was pinned for it.
_regions: MutableMapping[torch.Tensor, torch.Tensor] = WeakIdKeyDictionary()


class NativePinnedMemory:
    """Page-locks tensors in host memory; all instances share the registry of the process.

    Raises RuntimeError, with the reason, where this process may not lock memory.
    """

    def __init__(self) -> None:
        require_native()

    def pin(
        self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True
    ) -> torch.Tensor:
        """A page-locked tensor of the same dtype with the tensor's elements.

        match_shape keeps the shape, and the strides where the tensor is dense; without it the
        result is flat, (numel,). make_copy=False leaves it uninitialised and does not look at the
        elements. What is pinned already, wholly, is returned as it is.

        Raises PinError when the memory cannot be locked; TypeError, ValueError or
        NotImplementedError for what cannot be pinned (see require_pinnable).
        """
        require_pinnable(tensor, make_copy)
        if _pin.is_pinned(tensor):
            pinned = as_it_is(tensor, match_shape)
            if pinned is not None:
                return pinned
        return self.pin_fresh(tensor, make_copy, match_shape)

    def pin_fresh(self, tensor: torch.Tensor, make_copy: bool, match_shape: bool) -> torch.Tensor:
        """The same in memory of its own, whatever the tensor is; it must be pinnable."""
        pinned = pinned_region(*layout_of(tensor, match_shape), tensor.dtype)
        return fill(pinned, tensor) if make_copy else pinned

    def pin_empty(self, *size: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A page-locked tensor, not initialised: ``pin_empty(2, 3, dtype=...)``.

        Without a dtype it is torch's default. ``pin_empty(example, shape)`` is DeepSpeed's form,
        which takes the dtype of an example.
        """
        if size and isinstance(size[0], torch.Tensor):
            example, *size_of = size
            return self.pin_empty(*size_of, dtype=example.dtype if dtype is None else dtype)
        shape = shape_of(size)
        return pinned_region(shape, contiguous(shape), dtype or torch.get_default_dtype())

    def unpin(self, tensor: torch.Tensor) -> bool:
        """True if a region was pinned for ``tensor``, or starts with it: it is not pinned any more.

        False for anything else, and the second time. Other references to the memory stay valid.
        """
        return unpin(tensor)

    def is_pinned(self, tensor: Any) -> bool:
        """True when every byte that ``tensor`` reaches lies in one region of the registry."""
        return _pin.is_pinned(tensor)


def pinned_region(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A new page-locked tensor, not initialised; without elements it locks nothing.

    It has the attributes ``ds_pinned``, and ``ds_pin_base``: the address of its region, else None.
    """
    region = new_locked_tensor(math.prod(shape), dtype, current_tag(DEFAULT_TAG))
    if region.numel() == 0:
        pinned = region.new_empty(shape)
        _mark(pinned, None)
        return pinned
    # Not a view of the region, as which it could not be a leaf like any other.
    pinned = torch.empty(0, dtype=dtype, device="cpu")
    pinned.set_(region.untyped_storage(), 0, shape, strides)
    _mark(pinned, region.data_ptr())
    _regions[pinned] = region
    return pinned


def unpin(tensor: torch.Tensor) -> bool:
    """As NativePinnedMemory.unpin, for which no memory need be lockable."""
    region = _regions.pop(tensor, None)
    if region is not None:
        _mark(tensor, None)
        return _pin.release(region.data_ptr())
    # An object is unpinned once: where its .data leads now was pinned for another.
    return not was_unpinned(tensor) and free_locked_tensor(tensor)


def was_unpinned(tensor: torch.Tensor) -> bool:
    """True for an object that unpin() was called for, or that was pinned without any element."""
    return getattr(tensor, "ds_pin_base", 0) is None


def _mark(tensor: Any, base: int | None) -> None:
    """DeepSpeed's attributes. They only tell: nothing is decided by them but was_unpinned()."""
    tensor.ds_pinned = base is not None
    tensor.ds_pin_base = base


def shape_of(size: Sequence[Any]) -> tuple[int, ...]:
    """The shape that the arguments ``*size`` name. ValueError for a negative size."""
    if len(size) == 1 and isinstance(size[0], Sequence):
        size = size[0]
    shape = tuple(int(one) for one in torch.Size(size))
    if any(one < 0 for one in shape):
        raise ValueError(f"the size {shape} has a negative number; give numbers of elements")
    return shape


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a contiguous tensor."""
    return tuple(math.prod(max(size, 1) for size in shape[d + 1 :]) for d in range(len(shape)))


_shared: NativePinnedMemory | None = None


def get_native_pinned_memory() -> NativePinnedMemory:
    """The one of this process. Raises RuntimeError where it may not lock memory."""
    global _shared
    if _shared is None:  # two threads may make two, which are the same
        _shared = NativePinnedMemory()
    return _shared


def get_active_native_pinned_memory() -> NativePinnedMemory | None:
    """The one of this process if DS_PIN_MEMORY_BACKEND is ``native`` now, else None."""
    return get_native_pinned_memory() if selected_backend() == "native" else None
