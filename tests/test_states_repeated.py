"""Offloading, reloading and releasing may be repeated, in any order and in parts (G-11)."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
import pinned_manager.states.nvme as nvme
from pinned_manager import pinned_stats
from pinned_manager.states import OffloadStateTypeEnum, offload_states, release, reload_states
from support.states import PLACES, bytes_of, picture, small_model, tensors_of, train


def training() -> tuple[torch.nn.Module, Any]:
    model = small_model(16)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, range(1))
    return model, optimizer


@pytest.mark.parametrize("place", PLACES)
def test_twice(disk: Path, place: str) -> None:
    _, optimizer = training()
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    reload_states(optimizer)  # of nothing
    assert picture(tensors) == before
    offload_states(optimizer, device=place, nvme_path=disk)
    under_way = picture(tensors)
    addresses = [tensor.data_ptr() for tensor in tensors.values()]
    offload_states(optimizer, device=place, nvme_path=disk)
    assert picture(tensors) == under_way
    assert [tensor.data_ptr() for tensor in tensors.values()] == addresses
    reload_states(optimizer)
    assert picture(tensors) == before
    addresses = [tensor.data_ptr() for tensor in tensors.values()]
    reload_states(optimizer)
    assert picture(tensors) == before
    assert [tensor.data_ptr() for tensor in tensors.values()] == addresses
    release(optimizer)
    release(optimizer)
    assert picture(tensors) == before


@pytest.mark.parametrize("place", PLACES)
def test_in_parts(disk: Path, place: str) -> None:
    """Kind after kind, and then the rest; a part that comes back leaves nothing behind."""
    _, optimizer = training()
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    in_use = pinned_stats()["in_use"]
    offload_states(optimizer, [], place, nvme_path=disk)
    assert picture(tensors) == before
    offload_states(optimizer, ["optim_states"], place, nvme_path=disk)
    changed = {name for name, seen in picture(tensors).items() if seen != before[name]}
    assert changed
    assert all(name.startswith("state") for name in changed)
    offload_states(optimizer, "lp_grads", place, nvme_path=disk)
    offload_states(optimizer, None, place, nvme_path=disk)
    reload_states(optimizer)
    assert picture(tensors) == before
    assert pinned_stats()["in_use"] == in_use


def test_through_every_place(disk: Path) -> None:
    _, optimizer = training()
    tensors = tensors_of(optimizer)
    before = picture(tensors)
    in_use = pinned_stats()["in_use"]
    offload_states(optimizer)
    assert pinned_stats()["in_use"] > in_use
    offload_states(optimizer, device="nvme", nvme_path=disk)
    assert pinned_stats()["in_use"] == in_use  # the host memory is free again
    offload_states(optimizer, ["hp_params"])
    assert picture(tensors)["parameter 0"].octets == before["parameter 0"].octets
    assert tensors["gradient 0"].numel() == 0  # still in its file
    reload_states(optimizer)
    assert picture(tensors) == before
    assert pinned_stats()["in_use"] == in_use


@pytest.mark.parametrize("place", PLACES)
def test_nothing_to_move(disk: Path, place: str) -> None:
    """No states yet, no gradients, only frozen parameters, empty ones, an empty group."""
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    empty = torch.nn.Parameter(torch.empty(0, 5))
    optimizer = torch.optim.SGD([{"params": [frozen, empty]}, {"params": []}], lr=0.1)
    before = picture(tensors_of(optimizer))
    offload_states(optimizer, ["optim_states", "lp_grads", "lp_params"], place, nvme_path=disk)
    assert picture(tensors_of(optimizer)) == before
    offload_states(optimizer, device=place, nvme_path=disk)
    reload_states(optimizer)
    assert picture(tensors_of(optimizer)) == before
    # Not even a file is made, which would fail here.
    offload_states(torch.optim.SGD([empty]), device=place, nvme_path=disk / "missing")


def test_ordinary_host_memory_stays() -> None:
    """There is nothing to gain from a copy without locking it."""
    _, optimizer = training()
    addresses = [tensor.data_ptr() for tensor in tensors_of(optimizer).values()]
    offload_states(optimizer, pin_memory=False)
    assert [tensor.data_ptr() for tensor in tensors_of(optimizer).values()] == addresses


@pytest.mark.parametrize("place", PLACES)
def test_what_was_replaced_meanwhile_is_kept(disk: Path, place: str) -> None:
    model, optimizer = training()
    offload_states(optimizer, device=place, nvme_path=disk)
    optimizer.zero_grad(set_to_none=True)
    model[3].weight.data = torch.full((16, 16), 7.0)
    reload_states(optimizer)
    assert bool((model[3].weight == 7).all())
    assert model[3].weight.grad is None
    assert model[0].weight.shape == (16, 16)
    train(model, optimizer, range(1))


def test_dropped_gradients_free_their_memory() -> None:
    _, optimizer = training()
    in_use = pinned_stats()["in_use"]
    offload_states(optimizer, ["lp_grads"])
    assert pinned_stats()["in_use"] > in_use
    optimizer.zero_grad(set_to_none=True)
    offload_states(optimizer, ["lp_grads"])
    assert pinned_stats()["in_use"] == in_use


def test_nothing_is_read_for_dropped_gradients(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizer = training()
    offload_states(optimizer, ["lp_grads", "hp_params"], "nvme", nvme_path=disk)
    parameters = optimizer.param_groups[0]["params"]
    optimizer.zero_grad(set_to_none=True)
    read: list[int] = []

    class Counting(aio.aio_handle):
        def pread_many(self, items: Any) -> int:
            read.append(len(items))
            return super().pread_many(items)

    monkeypatch.setattr(nvme, "_new_handle", lambda directories: Counting())
    reload_states(optimizer)
    assert read == [len(parameters)]


@pytest.mark.parametrize("other_place", PLACES)
@pytest.mark.parametrize("place", PLACES)
def test_a_parameter_of_two_optimizers(disk: Path, place: str, other_place: str) -> None:
    """It is moved by the one that asks first, and comes back with that one."""
    shared, own = (torch.nn.Parameter(torch.randn(9)) for _ in range(2))
    first, second = torch.optim.SGD([shared]), torch.optim.SGD([shared, own])
    before = picture(tensors_of(second))
    offload_states(first, device=place, nvme_path=disk)
    offload_states(second, device=other_place, nvme_path=disk)
    reload_states(second)
    assert picture(tensors_of(second))["parameter 0"] != before["parameter 0"]
    assert picture(tensors_of(second))["parameter 1"] == before["parameter 1"]
    with torch.no_grad():
        own.add_(1)
    changed = picture(tensors_of(second))["parameter 1"]
    reload_states(first)
    assert picture(tensors_of(second)) == before | {"parameter 1": changed}


@given(
    names=st.lists(st.text(max_size=5) | st.sampled_from(list(OffloadStateTypeEnum)), min_size=1)
)
def test_unknown_kinds(names: list[str]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))])
    before = picture(tensors_of(optimizer))
    known = {kind.value for kind in OffloadStateTypeEnum}
    if {str(getattr(name, "value", name)) for name in names} <= known:
        return
    with pytest.raises(ValueError, match=", ".join(kind.value for kind in OffloadStateTypeEnum)):
        offload_states(optimizer, names)
    assert picture(tensors_of(optimizer)) == before


def test_bad_arguments(disk: Path) -> None:
    model, optimizer = training()
    before = picture(tensors_of(optimizer))
    with pytest.raises(ValueError, match="nvme_path"):
        offload_states(optimizer, device="nvme")
    with pytest.raises(ValueError, match="'cpu' or 'nvme'"):
        offload_states(optimizer, device="disk", nvme_path=disk)
    for target in (model, (), None, (model, optimizer), {"params": model}):
        with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer"):
            offload_states(target)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        offload_states((optimizer, "model"))
    for missing in (disk / "missing", disk / "file" / "below"):
        (disk / "file").touch()
        with pytest.raises(OSError, match=r"missing|below"):
            offload_states(optimizer, device="nvme", nvme_path=missing)
    assert picture(tensors_of(optimizer)) == before


def test_deepspeed_names() -> None:
    """A member is its name, so that DeepSpeed's enumeration and plain strings can be given."""
    assert [kind.value for kind in OffloadStateTypeEnum] == [
        "optim_states",
        "hp_params",
        "lp_params",
        "lp_grads",
        "contiguous_grad_buffer",
    ]
    assert all(kind == kind.name == kind.value for kind in OffloadStateTypeEnum)


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_held_after_many_rounds(disk: Path, place: str) -> None:
    _, optimizer = training()
    in_use = pinned_stats()["in_use"]
    for _ in range(5):
        offload_states(optimizer, device=place, nvme_path=disk)
        reload_states(optimizer)
    gc.collect()
    assert pinned_stats()["in_use"] == in_use
    assert bytes_of(tensors_of(optimizer)) > 0
    assert list(disk.iterdir()) == []
