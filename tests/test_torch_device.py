"""The device class of torch's own devices: copies between tensors, events on the current stream."""

from __future__ import annotations

import pytest
import torch

from pinned_manager import record_stream
from pinned_manager.device import TorchDevice, device_named
from support.fake_runtime import FakeModule

HOST = torch.device("cpu")  # its tensors stand for those of a device


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> FakeModule:
    made = FakeModule()
    monkeypatch.setattr(torch, "get_device_module", lambda device: made)
    return made


def test_copies_keep_shape_strides_and_dtype(module: FakeModule) -> None:
    device = TorchDevice(HOST)
    source = torch.arange(24.0, dtype=torch.float64).reshape(2, 3, 4).transpose(0, 2)
    source.requires_grad_()
    target = device.empty_like(source)
    assert (target.shape, target.stride()) == (source.shape, source.stride())
    assert target.dtype == torch.float64
    assert not target.requires_grad
    assert device.copy(target, source).query()
    assert torch.equal(target, source)
    assert module.log == ["event on the current stream"]


def test_memory_is_kept_for_the_current_stream(
    module: FakeModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: kept.append(stream))
    device = TorchDevice(HOST)
    device.keep_for_stream(torch.empty(1))
    assert [type(stream) for stream in kept] == [type(device.current_stream())]


def test_devices_without_copies_have_no_class() -> None:
    assert device_named("cpu") is None
    assert device_named(torch.device("meta")) is None
    with pytest.raises(TypeError, match="meta"):
        record_stream(torch.empty(1, device="meta"))
