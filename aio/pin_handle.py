"""DeepSpeed's pin_handle: page-locked tensors, for whoever does no I/O."""

from __future__ import annotations

from typing import Any

import torch

from _deepnvme import pin as _pin
from pinned_manager import free_locked_tensor, is_pinned, new_locked_tensor
from pinned_manager.accounting import current_tag


class LockedTensors:
    """What every handle of the process shares: they reach one registry."""

    _tag = "pin_handle"

    def new_cpu_locked_tensor(
        self,
        num_elem: int,
        example_tensor: torch.Tensor | None = None,
        *,
        example_tenosr: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A page-locked tensor of shape (num_elem,) and the example's dtype, not initialised.

        ``example_tenosr`` is the same argument as DeepSpeed spells it. Raises PinError when the
        memory cannot be locked; nothing is left behind then.
        """
        example = example_tenosr if example_tensor is None else example_tensor
        if not isinstance(example, torch.Tensor):
            raise TypeError(
                "example_tensor must be a torch.Tensor, whose dtype is taken, "
                f"not {type(example).__name__}"
            )
        return new_locked_tensor(num_elem, example.dtype, current_tag(self._tag))

    def is_pinned(self, buffer: Any) -> bool:
        """True when every byte that ``buffer`` reaches lies in one page-locked region, whichever
        handle made it.
        """
        return is_pinned(buffer)


class pin_handle(LockedTensors):  # DeepSpeed's name
    """Page-locked tensors from the registry of the process."""

    def free_cpu_locked_tensor(self, locked_tensor: torch.Tensor) -> bool:
        """True if ``locked_tensor`` starts a pinned region, which is not pinned any more.

        False for anything else. Pages are unlocked once no request uses them. Other references to
        the memory stay valid.
        """
        return free_locked_tensor(locked_tensor)

    def free_cpu_locked_tensor_by_ptr(self, address: int) -> bool:
        """The same for the address of a region's first byte."""
        return _pin.release(address)
