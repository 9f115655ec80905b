"""Intel Gaudi, by habana_frameworks."""

from __future__ import annotations

from pinned_manager.accelerators.torch_module import TorchModuleAccelerator


class HpuAccelerator(TorchModuleAccelerator):
    """Does not register: its runtime has no call for it. The torch backend pins."""

    name = "hpu"
    registers_host_memory = False
