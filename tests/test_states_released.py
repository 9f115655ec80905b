"""release() gives up everything of one target at once: locked pages, files, and nothing else."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pinned_manager import is_pinned, pinned_stats
from pinned_manager.states import offload_states, release, reload_states
from pinned_manager.states.owners import moving
from support.counters import counters
from support.forks import expect_child_ok, fork_and
from support.states import PLACES, picture, small_model, tensors_of, train
from support.threads import in_threads


def training() -> Any:
    model = small_model(32)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, range(1))
    return optimizer


@pytest.mark.parametrize("place", PLACES)
def test_everything_is_gone(disk: Path, place: str) -> None:
    optimizer, other = training(), training()
    offload_states(other, device=place, nvme_path=disk)
    away = picture(tensors_of(other))
    with counters():
        in_use = pinned_stats()["in_use"]
        offload_states(optimizer, device=place, nvme_path=disk)
        aliases = [t.detach() for t in tensors_of(optimizer).values() if t.dim() > 0]
        release(optimizer)
        # At once: aliases keep the memory, but not its pages locked.
        assert pinned_stats()["in_use"] == in_use
        assert not any(is_pinned(alias) for alias in aliases)
        assert all(t.numel() == 0 for t in tensors_of(optimizer).values() if t.dim() > 0)
        release(optimizer)
        reload_states(optimizer)
        del aliases
    assert picture(tensors_of(other)) == away
    release(other)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_not_offloaded_stays(disk: Path, place: str) -> None:
    optimizer = training()
    before = picture(tensors_of(optimizer))
    offload_states(optimizer, ["lp_grads"], place, nvme_path=disk)
    release(optimizer)
    after = picture(tensors_of(optimizer))
    lost = {name for name, seen in before.items() if after[name] != seen}
    assert lost == {name for name in before if name.startswith("gradient")}


def test_targets_in_many_threads(disk: Path) -> None:
    """Each its own target, and all of them one: a move waits for the one before it."""
    shared = training()
    before = picture(tensors_of(shared))

    def work(number: int) -> None:
        own = torch.optim.SGD([torch.nn.Parameter(torch.full((3000,), float(number)))])
        own_before = picture(tensors_of(own))
        for turn in range(10):
            place = PLACES[(number + turn) % 2]
            for optimizer in (own, shared):
                offload_states(optimizer, device=place, nvme_path=disk)
                reload_states(optimizer)
            assert picture(tensors_of(own)) == own_before

    in_threads(*(partial(work, number) for number in range(4)))
    assert picture(tensors_of(shared)) == before


def test_a_fork_beside_a_move() -> None:
    """The child does not wait for a thread that it does not have."""
    optimizer = training()
    inside, go_on = threading.Event(), threading.Event()

    def move() -> None:
        with moving(optimizer, []):
            inside.set()
            go_on.wait()

    thread = threading.Thread(target=move)
    thread.start()
    inside.wait()
    try:
        expect_child_ok(fork_and(lambda: release(optimizer)))
    finally:
        go_on.set()
        thread.join()


def test_a_signal_handler_cannot_move_what_is_moving() -> None:
    optimizer = training()
    before = picture(tensors_of(optimizer))
    with (
        moving(optimizer, []),
        pytest.raises(RuntimeError, match="signal handler"),
    ):
        offload_states(optimizer)
    offload_states(optimizer)
    reload_states(optimizer)
    assert picture(tensors_of(optimizer)) == before
