"""The device class of torch's own devices: copies between tensors, events on the current stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

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


class StreamingModule(FakeModule):
    """With streams of the caller's own."""

    def Stream(self, device: torch.device) -> Any:
        return SimpleNamespace(wait_event=lambda event: self.log.append(f"wait for {event}"))

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.log.append("on the side")
        yield
        self.log.append("back")


def test_a_side_stream_begins_after_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    module = StreamingModule()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    with TorchDevice(HOST).side_stream("the copy"):  # type: ignore[arg-type]
        module.log.append("work")
    assert module.log == ["wait for the copy", "on the side", "work", "back"]
    assert isinstance(device_named("cuda:1"), TorchDevice)


@pytest.mark.parametrize("way", ["copy_to_host", "copy_to_device"])
def test_copies_in_both_directions(module: FakeModule, way: str) -> None:
    target, source = torch.zeros(5), torch.arange(5.0)
    assert getattr(TorchDevice(HOST), way)(target, source).query()
    assert target.tolist() == [0, 1, 2, 3, 4]


def test_bytes_to_write_are_those_of_the_elements(module: FakeModule) -> None:
    device = TorchDevice(HOST)
    stored = torch.tensor([[1 + 2j, 3 - 4j], [5j, 6]], dtype=torch.complex64)
    for lazy in (stored, stored.T, stored.conj(), stored.T.conj(), stored.conj().imag):
        octets = device.octets(device.contiguous(lazy.requires_grad_(False)))
        assert bytes(octets.numpy()) == lazy.resolve_conj().resolve_neg().numpy().tobytes()


def test_a_read_ends_where_the_tensor_has_its_elements(module: FakeModule) -> None:
    device = TorchDevice(HOST)
    plain = torch.zeros(2, 3)
    assert device.contiguous_target(plain) is plain
    device.finish_target(plain, plain)
    strided = torch.zeros(3, 2, requires_grad=True).T
    target = device.contiguous_target(strided)
    assert target.is_contiguous()
    target.detach().copy_(torch.arange(6.0).reshape(2, 3))
    device.finish_target(target, strided)
    assert strided.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert module.log == ["event on the current stream"] * 2
    with pytest.raises(ValueError, match="overlap"):
        device.contiguous_target(torch.zeros(1).expand(3))
