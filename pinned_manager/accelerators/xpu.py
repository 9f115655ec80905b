"""Intel GPU."""

from __future__ import annotations

from pinned_manager.accelerators.torch_module import TorchModuleAccelerator


class XpuAccelerator(TorchModuleAccelerator):
    """Does not register: torch.xpu has no call for it, and SYCL has only C++ ones.

    The torch backend pins through SYCL's host allocations.
    """

    name = "xpu"
    registers_host_memory = False
