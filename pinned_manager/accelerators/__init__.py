"""What this process has for an accelerator, in its own way of pinning and registering memory."""

from __future__ import annotations

import threading

from _deepnvme import pin as _pin
from pinned_manager.accelerators.accelerator import Accelerator
from pinned_manager.accelerators.cpu import CpuAccelerator
from pinned_manager.accelerators.cuda import CudaAccelerator
from pinned_manager.accelerators.hpu import HpuAccelerator
from pinned_manager.accelerators.mps import MpsAccelerator
from pinned_manager.accelerators.npu import NpuAccelerator
from pinned_manager.accelerators.torch_module import TorchModuleAccelerator
from pinned_manager.accelerators.xpu import XpuAccelerator

__all__ = ["Accelerator", "get_accelerator", "set_accelerator"]

_KINDS: tuple[type[TorchModuleAccelerator], ...] = (
    CudaAccelerator,
    XpuAccelerator,
    NpuAccelerator,
    HpuAccelerator,
    MpsAccelerator,
)

_lock = threading.RLock()
_current: Accelerator | None = None


def get_accelerator() -> Accelerator:
    """The accelerator of this process: the first that torch has available, else the CPU.

    Looked for once, without initialising a device.
    """
    global _current
    found = _current  # another thread may forget it meanwhile
    if found is None:
        with _lock:
            found = _current = _current or _look()
    return found


def _look() -> Accelerator:
    return next((kind() for kind in _KINDS if kind.is_available()), None) or CpuAccelerator()


def set_accelerator(accelerator: Accelerator | None) -> None:
    """Use this one from now on; None: look for one again.

    What an earlier one has registered stays registered with it. Raises TypeError for anything else.
    """
    global _current
    if accelerator is not None and not isinstance(accelerator, Accelerator):
        raise TypeError(
            f"an accelerator must be an Accelerator, not {type(accelerator).__name__}; "
            "derive from pinned_manager.accelerators.Accelerator"
        )
    with _lock:
        _current = accelerator
    _pin.offer_again()
