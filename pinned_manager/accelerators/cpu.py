"""No accelerator: work is done when the call returns, and nothing is pinned for anybody."""

from __future__ import annotations

from typing import Any

import torch

from pinned_manager.accelerators.accelerator import Accelerator
from pinned_manager.device import Event


class DoneEvent:
    """An event of work that is done already."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return


class CpuAccelerator(Accelerator):
    """There is no runtime that could pin or register memory."""

    name = "cpu"
    registers_host_memory = False

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return False

    def register_host_memory(self, address: int, nbytes: int) -> bool:
        return False

    def unregister_host_memory(self, address: int) -> bool:
        return True

    def synchronize(self) -> None:
        return

    def record_event(self, stream: Any = None) -> Event:
        return DoneEvent()
