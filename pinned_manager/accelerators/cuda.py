"""CUDA, and ROCm under the same names."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pinned_manager.accelerators.refusal import (
    report_refused_registration,
    report_refused_unregistration,
)
from pinned_manager.accelerators.torch_module import TorchModuleAccelerator

PORTABLE = 1  # cudaHostRegisterPortable: for the contexts of all devices


def _forget_last_error() -> None:
    """Else the next kernel launch of torch would report a failed registration as its own.

    torch has loaded the runtime with its symbols visible, but has no name for this call.
    """
    name = "hipGetLastError" if torch.version.hip else "cudaGetLastError"
    call = getattr(ctypes.CDLL(None), name, None)
    if call is not None:
        call()


class CudaAccelerator(TorchModuleAccelerator):
    """Registers host memory by cudaHostRegister."""

    name = "cuda"

    def __init__(
        self, module: Any = None, forget_last_error: Callable[[], None] = _forget_last_error
    ) -> None:
        super().__init__(module)
        self._forget_last_error = forget_last_error

    @classmethod
    def is_available(cls) -> bool:
        # Counted by NVML where it can be, which leaves CUDA uninitialised; is_available() does not.
        return torch.cuda.device_count() > 0

    def register_host_memory(self, address: int, nbytes: int) -> bool:
        if self._belongs_to_parent():
            return False
        with self._device_with_a_context():
            code = int(self._module.cudart().cudaHostRegister(address, nbytes, PORTABLE))
        if code != 0:
            self._forget_last_error()
            report_refused_registration("cudaHostRegister", nbytes, f"error {code}")
        return code == 0

    def unregister_host_memory(self, address: int) -> bool:
        if self._belongs_to_parent():
            return False
        code = int(self._module.cudart().cudaHostUnregister(address))
        if code != 0:
            self._forget_last_error()
            report_refused_unregistration("cudaHostUnregister", f"error {code}")
        return code == 0

    def _device_with_a_context(self) -> AbstractContextManager[Any]:
        """A new context takes hundreds of megabytes of a device that the process may never use."""
        has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
        if has_context is None or not self._module.is_initialized():
            return nullcontext()
        devices = range(self._module.device_count())
        device = next((device for device in devices if has_context(device)), None)
        return nullcontext() if device is None else self._module.device(device)
