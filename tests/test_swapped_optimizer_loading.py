"""What is loaded: other states than this optimizer makes, and loads that end half way."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aio.swap import SwappedOptimizer, SwapStore
from support.held_transfer import held_transfer
from support.swapped import (
    give_gradients,
    made_parameters,
    parameter_bits,
    state_bits,
    twins,
)

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = ((700,), (7, 9), (300,))


@pytest.fixture
def store(disk: Path, make_handle: Callable[..., Any]) -> Iterator[SwapStore]:
    with SwapStore(disk / "swap", make_handle()) as made:
        yield made


def trained(params: list[Any], optimizer: Any, steps: range) -> Any:
    for step in steps:
        give_gradients(params, step)
        optimizer.step()
    return optimizer


def swapped_of(store: SwapStore, params: list[Any], cls: Any = torch.optim.Adam, **how: Any) -> Any:
    return SwappedOptimizer(params, cls, swap_dir=store, sub_group_bytes=1, **how)


class Mixed(torch.optim.Optimizer):
    """Keeps numbers beside tensors, some of them nested, for each parameter."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(count=0, none=None, more={"mean": torch.zeros_like(p), "n": 0.5})
                state["count"] += 1
                mean = state["more"]["mean"]
                mean.lerp_(p.grad, 1 / state["count"])
                p.sub_(mean, alpha=group["lr"] * state["more"]["n"])


@pytest.mark.parametrize("way", ["file", "dict", "plain dict"])
def test_numbers_among_states(store: SwapStore, disk: Path, way: str) -> None:
    plain_params = made_parameters(*SHAPES)
    params = twins(plain_params)
    plain = trained(plain_params, Mixed(plain_params), range(3))
    swapped = trained(params, swapped_of(store, params, Mixed), range(3))
    swapped.save(disk / "checkpoint")
    assert state_bits(torch.load(disk / "checkpoint")) == state_bits(plain)
    others = twins(params)
    resumed = swapped_of(store, others, Mixed)
    if way == "file":
        resumed.load(disk / "checkpoint")
    else:
        resumed.load_state_dict((swapped if way == "dict" else plain).state_dict())
    assert state_bits(resumed) == state_bits(plain)
    trained(plain_params, plain, range(3, 5))
    trained(others, resumed, range(3, 5))
    assert parameter_bits(others) == parameter_bits(plain_params)
    assert state_bits(resumed) == state_bits(plain)


def test_none_in_place_of_a_tensor(store: SwapStore) -> None:
    """As SGD of some versions has it before there is momentum."""
    plain_params = made_parameters(*SHAPES)
    params = twins(plain_params)
    plain = torch.optim.SGD(plain_params, momentum=0.5)
    swapped = swapped_of(store, params, torch.optim.SGD, momentum=0.5)
    loaded = plain.state_dict()
    loaded["state"] = {index: {"momentum_buffer": None} for index in range(len(SHAPES))}
    for optimizer, mine in ((plain, plain_params), (swapped, params)):
        optimizer.load_state_dict(loaded)
        trained(mine, optimizer, range(2))
    assert parameter_bits(params) == parameter_bits(plain_params)
    assert state_bits(swapped) == state_bits(plain)


def test_a_checkpoint_with_masters_without_them(store: SwapStore, disk: Path) -> None:
    """As the plain optimizer loads it: moments in the dtype of the parameter, no masters."""
    for cls, how in ((torch.optim.AdamW, {}), (torch.optim.SGD, {})):  # of which one has no states
        params = [torch.nn.Parameter(p.detach().bfloat16()) for p in made_parameters(*SHAPES)]
        first = swapped_of(store, params, cls, master_weights=True, **how)
        trained(params, first, range(2)).save(disk / "checkpoint")
        plain_params, others = twins(params), twins(params)
        plain = cls(plain_params, **how)
        without = torch.load(disk / "checkpoint")
        for state in without["state"].values():
            assert state.pop("master_weight").dtype == torch.float32
        without["state"] = {key: state for key, state in without["state"].items() if state}
        plain.load_state_dict(without)
        second = swapped_of(store, others, cls, **how)
        second.load(disk / "checkpoint")
        assert state_bits(second) == state_bits(plain)
        trained(plain_params, plain, range(2, 4))
        trained(others, second, range(2, 4))
        assert parameter_bits(others) == parameter_bits(plain_params)
        assert state_bits(second) == state_bits(plain)


def test_states_of_nobody(store: SwapStore, caplog: pytest.LogCaptureFixture) -> None:
    """They are left out, which is told; the others are loaded."""
    plain_params = made_parameters(*SHAPES)
    plain = trained(plain_params, torch.optim.Adam(plain_params), range(2))
    loaded = plain.state_dict()
    loaded["state"] = {**loaded["state"], "everyone": {"sum": torch.ones(3)}, 99: {}}
    swapped = swapped_of(store, twins(plain_params))
    swapped.load_state_dict(loaded)
    assert state_bits(swapped) == state_bits(plain)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["2 states of the loaded dict belong to no parameter and are left"]


def test_another_number_of_groups_is_refused(store: SwapStore) -> None:
    params = made_parameters(*SHAPES)
    swapped = trained(params, swapped_of(store, params), range(2))
    before = state_bits(swapped)
    groups = torch.optim.Adam([{"params": [p]} for p in twins(params)]).state_dict()
    with pytest.raises(ValueError, match="groups: 3, but the optimizer has 1"):
        swapped.load_state_dict(groups)
    assert state_bits(swapped) == before


@pytest.mark.parametrize(
    ("rank", "ranks", "words"),
    [
        (1, 2, "has the parts of rank 1 of 2, but this is rank 0 of 1; "),
        (0, 1, r"divided among ranks \[0\], but the parameter is an ordinary tensor; "),
    ],
)
def test_parts_of_dtensors_without_a_process_group(
    store: SwapStore, rank: int, ranks: int, words: str
) -> None:
    """A file that a rank has saved, in a program that is none."""
    params = made_parameters(*SHAPES)
    swapped = trained(params, swapped_of(store, params), range(2))
    before = state_bits(swapped)
    loaded = copy.deepcopy(swapped.state_dict())
    part = {"mesh": 0, "placements": [("Shard", 0)], "shape": (700,), "stride": (1,)}
    loaded["local_parts"] = {
        **{"rank": rank, "world_size": ranks, "meshes": [list(range(ranks))]},
        "parts": {0: {"['exp_avg']": part}},
    }
    with pytest.raises(ValueError, match=words + ".*use get_optimizer_state_dict") as caught:
        swapped.load_state_dict(loaded)
    assert "set_optimizer_state_dict" in str(caught.value)
    assert state_bits(swapped) == before


class Sparse(torch.optim.SGD):
    """Keeps a tensor without strides."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["seen"] = p.grad.to_sparse()


def test_a_state_that_a_file_cannot_hold(store: SwapStore, disk: Path) -> None:
    """save() leaves the last file as it is; what its message says to do instead works."""
    params = made_parameters(*SHAPES)
    swapped = swapped_of(store, params, Sparse)
    swapped.save(disk / "checkpoint")
    before = (disk / "checkpoint").read_bytes()
    trained(params, swapped, range(1))
    with pytest.raises(TypeError, match=r"layout torch\.sparse_coo, which save.*use torch\.save"):
        swapped.save(disk / "checkpoint")
    assert (disk / "checkpoint").read_bytes() == before
    assert sorted(path.name for path in disk.iterdir()) == ["checkpoint", "swap"]
    torch.save(swapped.state_dict(), disk / "checkpoint")
    resumed = swapped_of(store, twins(params), Sparse)
    resumed.load(disk / "checkpoint")
    for mine, theirs in zip(resumed.state.values(), params, strict=True):
        assert torch.equal(mine["seen"].to_dense(), theirs.grad)


class Picky(torch.optim.Adam):
    """Calls ``meanwhile`` each time that it loads."""

    meanwhile: Callable[[], None]

    def load_state_dict(self, state_dict: Any) -> None:
        Picky.meanwhile()
        super().load_state_dict(state_dict)


def test_a_load_that_ends_while_it_writes(store: SwapStore) -> None:
    """It waits for what was started: the buffer is still being read from."""
    params = made_parameters(*SHAPES)
    swapped = trained(params, swapped_of(store, params, Picky), range(2))
    loaded, before = swapped.state_dict(), state_bits(swapped)
    names, used = store.names(), swapped._pipeline.frames.used_bytes
    with held_transfer(store._core._handle, "submit_pwrite_many") as transfer:
        waited: list[Any] = []

        def ends_when_it_is_waited_for(timeout: float | None = None) -> None:
            if not transfer.done():
                waited.append(timeout)
                transfer.set_result(0)

        transfer.exception = ends_when_it_is_waited_for  # type: ignore[method-assign]
        calls = iter([lambda: None, lambda: [][1]])
        Picky.meanwhile = lambda: next(calls)()
        with pytest.raises(IndexError):
            swapped.load_state_dict(loaded)
        assert waited == [None]
        assert store.stats()["in_flight"] == 0
    assert store.names() == names
    assert swapped._pipeline.frames.used_bytes == used
    assert state_bits(swapped) == before


def test_ctrl_c_while_states_are_read(store: SwapStore) -> None:
    """It waits for what was started: the buffer is still being written to, and the next read would
    have it too.
    """
    params = made_parameters(*SHAPES)
    swapped = trained(params, swapped_of(store, params), range(2))
    before, used = state_bits(swapped), swapped._pipeline.frames.used_bytes
    with held_transfer(store._core._handle, "submit_pread_many") as transfer:
        waited: list[Any] = []

        def ends_after_ctrl_c(timeout: float | None = None) -> None:
            if transfer.done():
                return
            waited.append(timeout)
            if len(waited) == 1:
                signal.raise_signal(signal.SIGINT)
            transfer.set_result(0)

        transfer.exception = ends_after_ctrl_c  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            swapped.state_dict()
        assert waited == [None, None]
        assert store.stats()["in_flight"] == 0
    assert swapped._pipeline.frames.used_bytes == used
    assert state_bits(swapped) == before


def test_ctrl_c_as_loaded_states_replace_the_others(
    store: SwapStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = made_parameters(*SHAPES)
    swapped = trained(params, swapped_of(store, params, lr=0.5), range(2))
    loaded, expected = swapped.state_dict(), state_bits(swapped)
    trained(params, swapped, range(2, 4))
    swapped.param_groups[0]["lr"] = 0.25
    delete, deleted = store.delete, []

    def interrupted(name: str) -> None:
        deleted.append(name)
        delete(name)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(store, "delete", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swapped.load_state_dict(loaded)
    monkeypatch.undo()
    assert len(deleted) >= 2
    assert len(store.names()) == len(SHAPES)
    assert state_bits(swapped) == expected
    assert swapped.param_groups[0]["lr"] == 0.5
