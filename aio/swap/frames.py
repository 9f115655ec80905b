"""Pinned buffers that extents pass through, and those that stay in the cache."""

from __future__ import annotations

import torch

from aio.swap.layout import TensorSpec
from aio.swap.transfers import new_pinned


class Frames:
    """Buffers that are used again: (nbytes or more,) uint8, pinned where that is possible.

    All are of the standard size, so that each fits every sub-group, but for those of sub-groups
    that are larger: a standard of that size would waste the cache. Free ones are dropped before new
    ones would exceed what is allowed.
    """

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self.standard_bytes = 0
        self.allowed_bytes = 0  # free ones count; what is in use is its user's to bound
        self.used_bytes = 0
        self.peak_bytes = 0  # of all that existed at once

    @property
    def bytes(self) -> int:
        """Of all buffers."""
        return self.used_bytes + sum(frame.numel() for frame in self._free)

    def size(self, nbytes: int) -> int:
        """Of the buffer for an extent, in bytes."""
        return max(nbytes, self.standard_bytes) if nbytes else 0

    def take(self, nbytes: int) -> torch.Tensor:
        """A buffer of at least that size: a free one, or a new one."""
        nbytes = self.size(nbytes)
        at = next((i for i, frame in enumerate(self._free) if frame.numel() == nbytes), None)
        if at is None:
            while self._free and self.bytes + nbytes > self.allowed_bytes:
                self._free.pop(0)
            frame = new_pinned(TensorSpec(torch.uint8, torch.Size([nbytes]), (1,), nbytes))
        else:
            frame = self._free.pop(at)
        self.used_bytes += frame.numel()
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        return frame

    def give(self, frame: torch.Tensor) -> None:
        """What take() returned, for the next one."""
        self.used_bytes -= frame.numel()
        if self.bytes + frame.numel() <= self.allowed_bytes:
            self._free.append(frame)

    def clear(self) -> None:
        """Give the free ones back to the system."""
        self._free.clear()
