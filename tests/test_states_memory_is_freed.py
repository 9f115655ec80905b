"""Offloading frees memory, says where it cannot (G-10), and needs no second copy (G-15)."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import support.torch_threads  # noqa: F401
from pinned_manager import pinned_stats
from pinned_manager.states import offload_states, reload_states
from support.child import child_answer
from support.counters import counters
from support.states import PLACES, bytes_of, small_model, tensors_of, train

MIB = 1 << 20


def storages_of(tensors: dict[str, torch.Tensor]) -> list[Any]:
    return [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors.values()]


@pytest.mark.parametrize("place", PLACES)
def test_no_storage_stays(disk: Path, place: str, caplog: pytest.LogCaptureFixture) -> None:
    """The ones at home go at once, and so do those that it was away in."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, range(1))
    tensors = {n: t for n, t in tensors_of(optimizer).items() if t.dim() > 0}
    nbytes, in_use = bytes_of(tensors), pinned_stats()["in_use"]
    home = storages_of(tensors)
    gc.disable()  # not even a cycle holds them
    try:
        offload_states(optimizer, device=place, nvme_path=disk)
        assert all(storage.expired() for storage in home)
        if place == "cpu":
            assert pinned_stats()["by_tag"]["offload_states"] >= nbytes
        else:
            assert bytes_of(tensors) == 0
            assert pinned_stats()["in_use"] == in_use
        away = storages_of(tensors)
        reload_states(optimizer)
        assert all(storage.expired() for storage in away)
    finally:
        gc.enable()
    assert pinned_stats()["in_use"] == in_use
    assert bytes_of(tensors) == nbytes
    assert caplog.records == []


@pytest.mark.parametrize("place", PLACES)
def test_flat_buffers_go_with_their_views(disk: Path, place: str) -> None:
    """A gradient that is a view keeps its base alive, whoever else does."""
    flat = torch.randn(30)
    parameters = [torch.nn.Parameter(torch.randn(10)) for _ in range(3)]
    for index, parameter in enumerate(parameters):
        parameter.grad = flat[10 * index :][:10]
    storage = StorageWeakRef(flat.untyped_storage())
    values = flat.clone()
    del flat
    optimizer = torch.optim.SGD(parameters)
    offload_states(optimizer, device=place, nvme_path=disk)
    assert storage.expired()
    reload_states(optimizer)
    base = parameters[0].grad._base
    assert torch.equal(base, values)
    parameters[2].grad.zero_()
    assert torch.equal(base, torch.cat([values[:20], torch.zeros(10)]))


@pytest.mark.parametrize("place", PLACES)
def test_a_view_of_the_user_is_told(
    disk: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    weight, other = (torch.nn.Parameter(torch.full((1000,), value)) for value in (1.0, 2.0))
    optimizer = torch.optim.SGD([weight, other])
    view = weight.detach()[:10]
    offload_states(optimizer, device=place, nvme_path=disk)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pinned_manager", logging.WARNING)
    assert "1 of 2 offloaded storages, 4000 bytes, are not freed" in record.getMessage()
    reload_states(optimizer)
    with torch.no_grad():
        weight.add_(1)
    assert bool((view == 1).all())
    assert bool((weight == 2).all())


# Only a process that has done nothing else can tell: its heap has no room for what is allocated.
PEAK = """
import json, sys
import torch
from pinned_manager import set_cache_limit
from pinned_manager.states import offload_states, reload_states
from support.counters import status_kb
place, directory, nbytes = sys.argv[1], sys.argv[2], int(sys.argv[3])

def training(count, nbytes):
    parameters = [torch.nn.Parameter(torch.ones(nbytes // 4)) for _ in range(count)]
    return torch.optim.SGD(parameters)

def there_and_back(optimizer):
    offload_states(optimizer, device=place, nvme_path=directory)
    away = status_kb("VmRSS")
    reload_states(optimizer)
    return away

set_cache_limit(0)
there_and_back(training(2, 4000))  # whatever is made once for the process
optimizer = training(4, nbytes)
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")  # the peak starts anew from here
before, peak_before = status_kb("VmRSS"), status_kb("VmHWM")
away = there_and_back(optimizer)
print(json.dumps([status_kb("VmHWM") - peak_before, before - away]))
"""


@pytest.mark.not_sanitized("memory that is freed stays resident for a while")
@pytest.mark.parametrize("place", PLACES)
def test_the_peak_of_a_move(disk: Path, place: str) -> None:
    """At most one storage is there twice; to a file not even that, but for the handle's blocks."""
    grown, freed = child_answer(PEAK, place, disk, 33 * MIB)
    blocks = 32 << 10  # of the handle, and what else there is: less than one storage
    twice = 33 << 10 if place == "cpu" else 0
    assert grown <= twice + blocks
    if place == "nvme":
        assert freed >= (4 * 33 << 10) - blocks


@pytest.mark.parametrize("place", PLACES)
def test_a_dropped_optimizer_drops_everything(disk: Path, place: str) -> None:
    """Without a reload and without a release."""

    def use() -> None:
        model = small_model(32)
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer, range(1))
        offload_states((optimizer, model), device=place, nvme_path=disk)

    use()
    in_use = pinned_stats()["in_use"]
    with counters():
        use()
        gc.collect()
        assert pinned_stats()["in_use"] == in_use
