"""CUDA, ROCm and NPU register host memory by the calls and flags of their runtimes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pinned_manager.accelerators import cuda as cuda_module
from pinned_manager.accelerators import refusal
from pinned_manager.accelerators.cuda import CudaAccelerator
from pinned_manager.accelerators.npu import NpuAccelerator
from support.fake_runtime import FakeCuda, FakeModule, FakeNpu

ADDRESS, NBYTES = 0x7F00_0000_0000, 1 << 20
PORTABLE = 1  # cuda_runtime_api.h, hip_runtime_api.h
MAPPED_AND_PINNED = 0x10000002  # acl_rt.h


@pytest.fixture(autouse=True)
def said_nothing_yet() -> Iterator[None]:
    refusal._said.clear()
    yield
    refusal._said.clear()


def cuda(module: FakeModule, forgotten: list[Any] | None = None) -> CudaAccelerator:
    return CudaAccelerator(module, lambda: (forgotten if forgotten is not None else []).append(1))


def test_cuda() -> None:
    module, forgotten = FakeCuda(), list[Any]()
    module.up = False  # then there is no context to prefer
    accelerator = cuda(module, forgotten)
    assert accelerator.register_host_memory(ADDRESS, NBYTES) is True
    assert accelerator.unregister_host_memory(ADDRESS) is True
    assert module.log == [
        ("cudaHostRegister", ADDRESS, NBYTES, PORTABLE),
        ("cudaHostUnregister", ADDRESS),
    ]
    assert forgotten == []
    assert accelerator.pin_memory_alignment() == 1


def test_cuda_uses_a_device_that_has_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", [0, 0, 1].__getitem__, raising=False)
    module = FakeCuda()
    module.devices = 3
    assert cuda(module).register_host_memory(ADDRESS, NBYTES)
    assert module.log[0] == "on device 2"
    assert module.log[-1] == "off it"


def test_cuda_failures_are_forgotten_and_said(caplog: pytest.LogCaptureFixture) -> None:
    module, forgotten = FakeCuda(cudaHostRegister=2, cudaHostUnregister=713), list[Any]()
    accelerator = cuda(module, forgotten)
    for _ in range(2):
        assert accelerator.register_host_memory(ADDRESS, NBYTES) is False
        assert accelerator.unregister_host_memory(ADDRESS) is False
    assert len(forgotten) == 4  # else torch reports them at its next kernel
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "error 2" in said[0]
    assert "DS_PIN_MEMORY_REGISTER_DEVICE" in said[0]
    assert "error 713" in said[1]
    assert "stays locked" in said[1]


@pytest.mark.parametrize(("hip", "name"), [(None, "cudaGetLastError"), ("6.0", "hipGetLastError")])
def test_cuda_forgets_by_the_call_of_its_runtime(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, name: str
) -> None:
    """Once for each error, and for nothing else."""
    called: list[str] = []
    runtime = SimpleNamespace(
        cudaGetLastError=lambda: called.append("cudaGetLastError"),
        hipGetLastError=lambda: called.append("hipGetLastError"),
    )
    asked: list[object] = []

    def load(library: object) -> SimpleNamespace:
        asked.append(library)
        return runtime

    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(cuda_module, "ctypes", SimpleNamespace(CDLL=load))
    assert CudaAccelerator(FakeCuda()).register_host_memory(ADDRESS, NBYTES) is True
    assert called == []
    assert CudaAccelerator(FakeCuda(cudaHostRegister=2)).register_host_memory(1, 1) is False
    assert CudaAccelerator(FakeCuda(cudaHostUnregister=1)).unregister_host_memory(1) is False
    assert (called, asked) == ([name] * 2, [None] * 2)  # in what the process has loaded


@pytest.mark.parametrize("refused", ["", "npuHostRegister", "npuHostUnregister"])
def test_npu(caplog: pytest.LogCaptureFixture, refused: str) -> None:
    module = FakeNpu(**({refused: 507899} if refused else {}))
    accelerator = NpuAccelerator(module)
    assert accelerator.register_host_memory(ADDRESS, NBYTES) is (refused != "npuHostRegister")
    assert accelerator.unregister_host_memory(ADDRESS) is (refused != "npuHostUnregister")
    assert module.log == [
        ("npuHostRegister", ADDRESS, NBYTES, MAPPED_AND_PINNED),
        ("npuHostUnregister", ADDRESS),
    ]
    said = [record.getMessage() for record in caplog.records]
    assert [refused in one and "507899" in one for one in said] == [True] * bool(refused)
    assert accelerator.pin_memory_alignment() == 4096


def test_an_npu_without_the_call(caplog: pytest.LogCaptureFixture) -> None:
    accelerator = NpuAccelerator(FakeModule())
    assert accelerator.register_host_memory(ADDRESS, NBYTES) is False
    assert "npurt" in caplog.text


@pytest.mark.parametrize("kind", [FakeCuda, FakeNpu])
def test_a_forked_child_makes_no_call(kind: type[FakeModule]) -> None:
    module = kind()
    module.of_parent = True
    accelerator = cuda(module) if kind is FakeCuda else NpuAccelerator(module)
    assert accelerator.can_register() is False
    assert accelerator.register_host_memory(ADDRESS, NBYTES) is False
    assert accelerator.unregister_host_memory(ADDRESS) is False
    accelerator.synchronize()
    assert accelerator._torch_is_pinned(torch.empty(1)) is False
    assert module.log == []


def test_cuda_without_a_driver_forgets_quietly() -> None:
    """The call that clears the error is looked up in the process: it may not be there."""
    assert CudaAccelerator(FakeCuda(cudaHostRegister=2)).register_host_memory(1, 1) is False
