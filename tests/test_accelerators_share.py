"""What every accelerator does: events, synchronisation, torch's pinning, and the public calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import pinned_manager
from pinned_manager.accelerators import Accelerator
from pinned_manager.accelerators.cpu import CpuAccelerator
from pinned_manager.accelerators.cuda import CudaAccelerator
from pinned_manager.accelerators.hpu import HpuAccelerator
from pinned_manager.accelerators.mps import MpsAccelerator
from pinned_manager.accelerators.npu import NpuAccelerator
from pinned_manager.accelerators.xpu import XpuAccelerator
from support.fake_runtime import FakeModule, FakeStream

WITH_STREAMS = [CudaAccelerator, XpuAccelerator, NpuAccelerator, HpuAccelerator]
WITHOUT_REGISTRATION = [XpuAccelerator, HpuAccelerator, MpsAccelerator]


@pytest.mark.parametrize("kind", WITH_STREAMS)
def test_events_and_synchronisation(kind: Any) -> None:
    module = FakeModule()
    accelerator = kind(module)
    assert accelerator.record_event().query()
    assert accelerator.record_event(FakeStream(module.log, "mine")).query()
    accelerator.synchronize()
    assert module.log == ["event on the current stream", "event on mine", "synchronize"]


@pytest.mark.parametrize("kind", WITH_STREAMS)
def test_a_runtime_that_is_down_is_not_started(kind: Any) -> None:
    module = FakeModule()
    module.up = False
    accelerator = kind(module)
    accelerator.synchronize()
    assert accelerator._torch_is_pinned(torch.empty(1)) is False
    assert module.log == []
    assert module.up is False


@pytest.mark.parametrize("kind", WITH_STREAMS)
def test_torch_pins(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, copy = torch.ones(2), torch.ones(2)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *device: copy)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self, *device: self is copy)
    accelerator = kind(FakeModule())
    assert accelerator._torch_pin_memory(tensor) is copy
    assert accelerator._torch_is_pinned(copy)
    assert not accelerator._torch_is_pinned(tensor)


@pytest.mark.parametrize("kind", WITH_STREAMS)
def test_torch_before_2_6_is_told_the_device(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.delattr(torch, "accelerator", raising=False)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, device: told.append(device))
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self, device: bool(told.append(device)))
    accelerator = kind(FakeModule())
    accelerator._torch_pin_memory(torch.ones(1))
    accelerator._torch_is_pinned(torch.ones(1))
    assert told == [kind.name, kind.name]


@pytest.mark.parametrize("kind", WITHOUT_REGISTRATION)
def test_runtimes_without_registration(kind: Any) -> None:
    accelerator = kind(FakeModule())
    assert accelerator.registers_host_memory is False
    assert accelerator.register_host_memory(4096, 4096) is False
    assert accelerator.unregister_host_memory(4096) is True


def test_mps_has_one_stream_and_pins_nothing() -> None:
    class Event:
        recorded = False

        def record(self) -> None:
            self.recorded = True

        def query(self) -> bool:
            return self.recorded

    module: Any = FakeModule()
    module.Event = Event
    accelerator = MpsAccelerator(module)
    assert accelerator.record_event().query()
    tensor = torch.ones(1)
    assert accelerator._torch_pin_memory(tensor) is tensor
    assert accelerator._torch_is_pinned(tensor) is False


def test_cpu() -> None:
    accelerator = CpuAccelerator()
    tensor = torch.ones(1)
    assert accelerator._torch_pin_memory(tensor) is tensor
    assert accelerator._torch_is_pinned(tensor) is False
    assert accelerator.register_host_memory(4096, 4096) is False
    assert accelerator.unregister_host_memory(4096) is True
    event = accelerator.record_event()
    event.synchronize()
    accelerator.synchronize()
    assert event.query()
    assert accelerator.pin_memory_alignment() == 1


def test_public_calls_are_the_package_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_PIN_MEMORY_BACKEND", "native")
    accelerator: Accelerator = CpuAccelerator()
    pinned = accelerator.pin_memory(torch.arange(10), make_copy=True, match_shape=False)
    assert torch.equal(pinned, torch.arange(10))
    assert accelerator.is_pinned(pinned)
    assert accelerator.unpin_memory(pinned) is True
    assert not pinned_manager.is_pinned(pinned)
    scratch = accelerator.pin_empty(2, 3, dtype=torch.float16)
    assert scratch.shape == (2, 3)
    assert scratch.dtype == torch.float16
    like = accelerator.pin_empty_like(scratch, dtype=torch.int8)
    assert like.shape == (2, 3)
    assert like.dtype == torch.int8
    assert accelerator.is_pinned(like)
