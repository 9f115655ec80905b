"""Accelerators that are a module of torch: torch.cuda, torch.xpu, torch.npu, ..."""

from __future__ import annotations

from typing import Any

import torch

from pinned_manager.accelerators.accelerator import Accelerator
from pinned_manager.device import Event


class TorchModuleAccelerator(Accelerator):
    """What those modules do alike. ``module`` is the one to use, in tests a fake one."""

    def __init__(self, module: Any = None) -> None:
        self._module = getattr(torch, self.name) if module is None else module

    @classmethod
    def is_available(cls) -> bool:
        """Whether this process has one. Does not initialise it."""
        module = getattr(torch, cls.name, None)
        return module is not None and bool(module.is_available())

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        if hasattr(torch, "accelerator"):
            return tensor.pin_memory()
        return tensor.pin_memory(self.name)  # before torch 2.6 it meant CUDA unless told

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        if self._belongs_to_parent():
            return False
        return tensor.is_pinned() if hasattr(torch, "accelerator") else tensor.is_pinned(self.name)

    def can_register(self) -> bool:
        return self.registers_host_memory and not self._belongs_to_parent()

    def register_host_memory(self, address: int, nbytes: int) -> bool:
        return False

    def unregister_host_memory(self, address: int) -> bool:
        return True

    def synchronize(self) -> None:
        if self._is_up():
            self._module.synchronize()

    def record_event(self, stream: Any = None) -> Event:
        event: Event = (self._module.current_stream() if stream is None else stream).record_event()
        return event

    def _is_up(self) -> bool:
        """Whether the runtime runs, in this process and not in the one that forked it."""
        initialized = getattr(self._module, "is_initialized", self._module.is_available)
        return bool(initialized()) and not self._belongs_to_parent()

    def _belongs_to_parent(self) -> bool:
        forked = getattr(self._module, "_is_in_bad_fork", None)
        return forked is not None and bool(forked())
