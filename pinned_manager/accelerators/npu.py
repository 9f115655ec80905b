"""Ascend NPU, by torch_npu."""

from __future__ import annotations

from pinned_manager.accelerators.refusal import (
    report_refused_registration,
    report_refused_unregistration,
)
from pinned_manager.accelerators.torch_module import TorchModuleAccelerator

# acl/acl_rt.h: ACL_HOST_REG_MAPPED | ACL_HOST_REG_PINNED, which is what makes copies asynchronous.
MAPPED_AND_PINNED = 0x2 | 0x10000000
PAGE = 4096  # addresses and sizes that do not divide by it are refused (error 507899)


class NpuAccelerator(TorchModuleAccelerator):
    """Registers host memory by aclrtHostRegisterV2, which torch.npu.npurt() has from 2.9 on."""

    name = "npu"

    def pin_memory_alignment(self) -> int:
        return PAGE

    def register_host_memory(self, address: int, nbytes: int) -> bool:
        if self._belongs_to_parent():
            return False
        if not hasattr(self._module, "npurt"):
            reason = "this torch_npu has no npurt(), which comes with 2.9"
            report_refused_registration("npuHostRegister", nbytes, reason)
            return False
        code = int(self._module.npurt().npuHostRegister(address, nbytes, MAPPED_AND_PINNED))
        if code != 0:
            report_refused_registration("npuHostRegister", nbytes, f"error {code}")
        return code == 0

    def unregister_host_memory(self, address: int) -> bool:
        if self._belongs_to_parent():
            return False
        code = int(self._module.npurt().npuHostUnregister(address))
        if code != 0:
            report_refused_unregistration("npuHostUnregister", f"error {code}")
        return code == 0
