"""States of a device move by its own copies, and host memory lives until the last one is done
(D-07), however late that is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pinned_manager import collect_streams, is_pinned, new_locked_tensor, pinned_stats
from pinned_manager.device import register_device, unregister_device
from pinned_manager.states import collect, offload_states, release, reload_states
from support.fake_device import FakeDevice, FakeEvent
from support.states import picture, tensors_of


class LateDevice(FakeDevice):
    """The memory of torch's CPU tensors as that of a device."""

    def octets(self, tensor: torch.Tensor) -> Any:
        return tensor.numpy()

    def contiguous(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    contiguous_target = contiguous

    def empty_like(self, host: torch.Tensor) -> Any:
        return torch.empty_like(host)

    def keep_for_stream(self, tensor: Any) -> None:
        self._queue(lambda: tensor.size())


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[LateDevice]:
    """What trainings of a test are on."""
    monkeypatch.setattr(collect, "is_host", lambda _: False)
    made = LateDevice()
    register_device("cpu", made)
    yield made
    unregister_device("cpu")
    made.end()


def training() -> torch.optim.Optimizer:
    """Parameters that share memory, a frozen one, gradients, states."""
    base = torch.randn(3000)
    parameters = [torch.nn.Parameter(base[start:]) for start in (0, 100)]
    parameters.append(torch.nn.Parameter(torch.randn(5, 6).T, requires_grad=False))
    parameters.append(torch.nn.Parameter(torch.randn(70).half()))
    optimizer = torch.optim.SGD(parameters)
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)
        optimizer.state[parameter]["moment"] = torch.randn(parameter.shape)
    return optimizer


def scribble() -> list[torch.Tensor]:
    """Take what has been freed of locked memory, and overwrite it."""
    return [new_locked_tensor(nbytes, torch.uint8).fill_(0xEE) for nbytes in [12000] * 20]


@pytest.mark.parametrize("pin_memory", [False, True])
def test_to_host_memory_and_back(device: LateDevice, pin_memory: bool) -> None:
    optimizer = training()
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    offload_states(optimizer, pin_memory=pin_memory)
    away = picture(tensors)
    copies = device.copies
    assert copies > 0
    for name, tensor in tensors.items():
        if tensor.requires_grad:  # or its gradient hooks would be lost
            assert tensor.numel() == 0
        else:
            assert is_pinned(tensor) == pin_memory
            assert away[name].octets == before[name].octets
    with pytest.raises(RuntimeError, match="reload_states"):
        optimizer.step()
    reload_states(optimizer)
    assert picture(tensors) == before
    assert device.copies == 2 * copies
    assert all(parameter.is_leaf for parameter in optimizer.param_groups[0]["params"])


def test_host_memory_lives_until_a_late_reload_is_done(device: LateDevice) -> None:
    optimizer = training()
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    in_use = pinned_stats()["in_use"]
    offload_states(optimizer)
    device.hold()
    reload_states(optimizer, non_blocking=True)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        name: torch.Size(seen.size) for name, seen in before.items()
    }
    junk = scribble()  # the owner is gone, and everybody else allocates
    device.let_go()
    device.record_event().synchronize()
    assert picture(tensors) == before
    del junk
    assert collect_streams() == 0
    assert pinned_stats()["in_use"] == in_use


def test_a_late_offload_is_waited_for(device: LateDevice, disk: Path) -> None:
    """Before its bytes go to a file."""
    optimizer = training()
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    device.hold()
    offload_states(optimizer, non_blocking=True)
    thread = threading.Thread(
        target=offload_states,
        args=(optimizer,),
        kwargs={"device": "nvme", "nvme_path": disk, "include": ["hp_params"]},
    )
    thread.start()
    device.until_asked()
    device.let_go()
    thread.join()
    reload_states(optimizer)
    assert picture(tensors) == before


def test_late_copies_of_what_is_released(device: LateDevice) -> None:
    """Nobody reads the bytes, but nobody else's bytes may be overwritten."""
    optimizer = training()
    offload_states(optimizer, non_blocking=True)
    release(optimizer)
    junk = scribble()
    device.record_event().synchronize()
    assert all(bool((one == 0xEE).all()) for one in junk)


def test_to_a_file_and_back(device: LateDevice, disk: Path) -> None:
    optimizer = training()
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    offload_states(optimizer, device="nvme", nvme_path=disk)
    assert all(tensor.numel() == 0 for tensor in tensors.values())
    offload_states(optimizer, ["optim_states"])  # into host memory
    assert any(is_pinned(tensor) for tensor in tensors.values())
    reload_states(optimizer)
    assert picture(tensors) == before


@pytest.mark.parametrize("copy", [1, 3])
def test_a_device_that_fails(device: LateDevice, copy: int) -> None:
    optimizer = training()
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    start = device.copy

    def fail_at(*arguments: Any) -> FakeEvent:
        nonlocal copy
        copy -= 1
        device.fail_copies = int(copy == 0)
        return start(*arguments)

    device.copy = fail_at  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="does not copy"):
        offload_states(optimizer)
    assert picture(tensors) == before
    offload_states(optimizer)
    copy = 2
    with pytest.raises(RuntimeError, match="does not copy"):
        reload_states(optimizer)
    reload_states(optimizer)
    assert picture(tensors) == before
