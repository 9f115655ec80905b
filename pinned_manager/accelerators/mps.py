"""Apple GPU."""

from __future__ import annotations

from typing import Any

import torch

from pinned_manager.accelerators.torch_module import TorchModuleAccelerator
from pinned_manager.device import Event


class MpsAccelerator(TorchModuleAccelerator):
    """Memory is shared between the processors: there is nothing to pin for it or to register."""

    name = "mps"
    registers_host_memory = False

    @classmethod
    def is_available(cls) -> bool:
        return torch.backends.mps.is_available()

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return False

    def record_event(self, stream: Any = None) -> Event:
        event: Event = self._module.Event()
        event.record()  # type: ignore[attr-defined]  # it has one stream
        return event
