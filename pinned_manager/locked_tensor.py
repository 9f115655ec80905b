"""Tensors in page-locked memory: allocation, release, the pool behind them, and its limits.

The region behind a tensor lives as long as its storage: until the last view, ``.data`` alias, numpy
array or request in flight lets go. Then its pages are kept for reuse, up to a limit (2 GiB, or
``DEEPNVME_PIN_CACHE_BYTES``).
"""

from __future__ import annotations

import operator
from typing import TypedDict

import torch
from torch.utils.dlpack import from_dlpack

from _deepnvme import pin as _pin
from pinned_manager.accounting import current_tag, note_native_pin

PinError = _pin.PinError


class PinnedStats(TypedDict):
    """Page-locked bytes of this process, rounded up to pages."""

    in_use: int  # of live pinned tensors
    cached: int  # locked for reuse, and the unused part of the mappings that small tensors share
    peak: int  # the highest in_use
    regions: int  # live pinned tensors
    calls: int  # allocations so far
    by_tag: dict[str, int]  # in_use by owner


def new_locked_tensor(num_elem: int, dtype: torch.dtype, tag: str = "") -> torch.Tensor:
    """A page-locked tensor of shape (num_elem,), not initialised, counted under ``tag``.

    Without a tag it counts under that of pinned_memory_tag(). Raises PinError when the memory
    cannot be locked, ValueError for a negative number of elements, NotImplementedError where a mode
    of torch makes tensors without memory (FakeTensorMode).
    """
    count = operator.index(num_elem)
    if count < 0:
        raise ValueError(f"num_elem is {count}, but must be at least 0; give a number of elements")
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    if type(tensor) is not torch.Tensor:
        raise NotImplementedError(
            f"torch makes a {type(tensor).__name__} here, which has no memory to lock; "
            "pin outside of fake and functional modes"
        )
    if count == 0:
        return tensor
    # As bytes, which every version of torch takes over DLPack; set_ makes it a tensor of any dtype,
    # not a view.
    nbytes = count * tensor.element_size()
    octets = from_dlpack(_pin.allocate_dlpack(nbytes, tag or current_tag("")))
    note_native_pin(nbytes)
    return tensor.set_(octets.untyped_storage(), 0, (count,), (1,))


def free_locked_tensor(tensor: torch.Tensor) -> bool:
    """True if ``tensor`` starts a pinned region, which is not pinned and not counted any more.

    False for anything else: a second call, a slice that starts inside, ordinary memory. Pages are
    unlocked once no request uses them; whatever else refers to the memory can still be used.
    """
    # Asked first: it never touches the memory of a fake, meta or sparse tensor.
    return _pin.is_pinned(tensor) and _pin.release(tensor.data_ptr())


def pinned_stats() -> PinnedStats:
    """Page-locked memory of this process, in bytes, as it is now."""
    return _pin.stats()


def empty_cache() -> None:
    """Unlock and unmap what is kept for reuse."""
    _pin.empty_cache()


def set_cache_limit(nbytes: int) -> None:
    """Bytes that may stay locked for reuse; what is over is given up now.

    ValueError when negative.
    """
    _pin.set_cache_limit(nbytes)


def get_cache_limit() -> int:
    """Bytes that may stay locked for reuse."""
    return _pin.get_cache_limit()


def set_budget(nbytes: int | None) -> None:
    """Bytes that may be in use at a time, rounded up to pages; None for any number.

    Pins beyond it raise PinError, which lists the owners. ValueError when negative.
    """
    _pin.set_budget(nbytes)


def get_budget() -> int | None:
    """Bytes that may be in use at a time: as set, else DEEPNVME_PIN_BUDGET, else None."""
    return _pin.get_budget()
