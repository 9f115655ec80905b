"""What an accelerator has to do for pinned memory, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch

from pinned_manager.device import Event


class Accelerator(ABC):
    """The primitives of one kind of device; which backend pins is not its business.

    Addresses and sizes are in bytes. Methods may be called from any thread.
    """

    name: ClassVar[str]  # torch's device type
    registers_host_memory: ClassVar[bool] = True  # False: its runtime has no call for it

    @abstractmethod
    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a CPU tensor in memory that torch pins; the tensor itself if it is pinned."""

    @abstractmethod
    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether torch has pinned a CPU tensor."""

    def can_register(self) -> bool:
        """Whether to ask for registrations in this process at all."""
        return self.registers_host_memory

    @abstractmethod
    def register_host_memory(self, address: int, nbytes: int) -> bool:
        """Let the device reach page-locked memory directly. Both are multiples of a page.

        False when it cannot; the memory is as it was then.
        """

    @abstractmethod
    def unregister_host_memory(self, address: int) -> bool:
        """Take back one registration, by its address. False when the device may reach it still."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for everything that was asked of the current device."""

    @abstractmethod
    def record_event(self, stream: Any = None) -> Event:
        """A point after the work that is queued on ``stream``, or on the current one."""

    def pin_memory_alignment(self) -> int:
        """Bytes that addresses and sizes of pinned memory should divide by."""
        return 1

    def pin_memory(
        self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True
    ) -> torch.Tensor:
        """pinned_manager.pin_memory."""
        from pinned_manager import dispatch

        return dispatch.pin_memory(tensor, make_copy, match_shape)

    def unpin_memory(self, tensor: torch.Tensor) -> bool | None:
        """pinned_manager.unpin_memory."""
        from pinned_manager import dispatch

        return dispatch.unpin_memory(tensor)

    def is_pinned(self, tensor: Any) -> bool:
        """pinned_manager.is_pinned."""
        from pinned_manager import dispatch

        return dispatch.is_pinned(tensor)

    def pin_empty(
        self,
        *size: Any,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> torch.Tensor:
        """pinned_manager.pin_empty."""
        from pinned_manager import dispatch

        return dispatch.pin_empty(*size, dtype=dtype, device=device)

    def pin_empty_like(
        self,
        tensor: torch.Tensor,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """pinned_manager.pin_empty_like."""
        from pinned_manager import dispatch

        return dispatch.pin_empty_like(tensor, device=device, dtype=dtype)
