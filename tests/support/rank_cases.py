"""What two ranks train: run as a script by test_swapped_optimizer_distributed.py."""

from __future__ import annotations

import errno
import gc
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

import support.rank_checkpoints  # noqa: F401 its cases
from aio.swap import SwappedOptimizer, SwapStepError, SwapStore
from support.broken_store import broken_file
from support.rank_pairs import (
    SWAPPED,
    Layered,
    Masters,
    Pair,
    ddp,
    fsdp,
    part_bits,
    states_of,
    tensor_parallel,
    warm_up,
)
from support.ranks import RANKS, Case, case, gathered, run_cases


def state_bytes(optimizer: Any) -> int:
    """Of the tensors with dimensions, as far as this rank has them."""
    from torch.distributed.tensor import DTensor

    leaves = [leaf for state in optimizer.state.values() for leaf in state.values()]
    parts = [leaf.to_local() if isinstance(leaf, DTensor) else leaf for leaf in leaves]
    return sum(part.nbytes for part in parts if isinstance(part, torch.Tensor) and part.dim())


def fsdp_with(cls: type[torch.optim.Optimizer], **kwargs: Any) -> Case:
    def run(directory: Path) -> None:
        pair = Pair(fsdp, cls, kwargs, directory)
        with pair.swapped as swapped:
            pair.train(range(5))
            on_drive = swapped.stats()["state_bytes"]
            assert 0 < state_bytes(pair.plain) <= on_drive < state_bytes(pair.plain) + 64 * 1024

    return run


for number, (cls, kwargs) in enumerate(
    [
        (torch.optim.AdamW, {"lr": 0.01}),
        (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
        (torch.optim.Adam, {"lr": 0.01, "foreach": True, "amsgrad": True}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.5}),
    ]
):
    made = fsdp_with(cls, **kwargs)
    made.__name__ = f"fsdp_{cls.__name__.lower()}_{number}"
    case(made)


@case
def ddp_adamw(directory: Path) -> None:
    pair = Pair(ddp, torch.optim.AdamW, {"lr": 0.01}, directory)
    with pair.swapped as swapped:
        pair.train(range(4))
        assert len(set(gathered(str(states_of(swapped))))) == 1
        if distributed.get_rank() == 0:  # all ranks have the same
            swapped.save(directory / "checkpoint")
        distributed.barrier()
        pair.train(range(4, 6))
        swapped.load(directory / "checkpoint")
        pair.plain.load_state_dict(torch.load(directory / "checkpoint", weights_only=True))
        pair.train(range(6, 8))


@case
def tensor_parallel_adamw(directory: Path) -> None:
    pair = Pair(tensor_parallel, torch.optim.AdamW, {"lr": 0.01}, directory)
    with pair.swapped:
        pair.train(range(4), clip=None)  # torch cannot add norms of these and of ordinary ones


@case
def masters_of_bfloat16(directory: Path) -> None:
    how = {"dtype": torch.bfloat16, "make_plain": Masters, "master_weights": True}
    pair = Pair(fsdp, torch.optim.AdamW, {"lr": 1e-3}, directory, **how)
    path = directory / f"checkpoint-{distributed.get_rank()}"
    with pair.swapped as swapped:
        pair.train(range(3))
        swapped.save(path)
        weights = [p.detach().clone() for p in pair.params[SWAPPED]]
        pair.backward(7)
        swapped.step()
        swapped.load(path)
        for param, saved in zip(pair.params[SWAPPED], weights, strict=True):
            param.detach().copy_(saved)
        pair.train(range(3, 6))


def overflow(directory: Path, unscale: bool, **kwargs: Any) -> None:
    pair = Pair(fsdp, torch.optim.AdamW, {"lr": 0.01, **kwargs}, directory)
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0) for _ in pair.optimizers]
    with pair.swapped as swapped:
        for step in range(4):
            factor = 8 * (math.inf if step == 2 and distributed.get_rank() == 1 else 1.0)
            before = part_bits(pair.params[SWAPPED]), states_of(swapped)
            pair.backward(step, factor)
            for scaler, params, optimizer in zip(
                scalers, pair.params, pair.optimizers, strict=True
            ):
                scaler.scale(torch.ones(()))  # it must have seen a loss
                if unscale:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(params, 0.5)
                scaler.step(optimizer)
                scaler.update(8.0)
            pair.check()
            after = part_bits(pair.params[SWAPPED]), states_of(swapped)
            assert (before == after) == (step == 2)


@case
def an_overflow_skips_a_step(directory: Path) -> None:
    overflow(directory, unscale=True)


@case
def a_fused_optimizer_skips_by_itself(directory: Path) -> None:
    overflow(directory, unscale=False, fused=True)


@case
def ranks_go_in_the_same_order(directory: Path) -> None:
    """Also where their parts differ so much that each would divide parameters otherwise."""
    pair = Pair(fsdp, Layered, {}, directory, sub_group_bytes=980, cache_bytes=4096)
    with pair.swapped as swapped:
        pair.train(range(5))
        groups = [[m.index for m in group.members] for group in swapped._sub_groups]
        assert len(groups) > 2
        assert gathered(groups) == [groups] * RANKS


def drive_fails(directory: Path, cls: type[torch.optim.Optimizer], **kwargs: Any) -> None:
    with SwapStore(directory) as store:
        pair = Pair(fsdp, cls, kwargs, store, cache_bytes=0)
        with pair.swapped as swapped:
            pair.train(range(2))
            for step in range(2, 4):
                pair.backward(step)
                pair.plain.step()
                if distributed.get_rank() == 0:
                    swapped.step()
                else:
                    with broken_file(store) as path, pytest.raises(SwapStepError) as caught:
                        swapped.step()
                    assert (caught.value.errno, caught.value.filename) == (errno.EISDIR, path)
                    assert caught.value.not_updated
                    swapped.finish_step()
                pair.check()
            pair.train(range(4, 6))


@case
def a_rank_whose_drive_fails(directory: Path) -> None:
    """It gets an error, the other one does not, and goes on; then it catches up."""
    drive_fails(directory, torch.optim.AdamW, lr=0.01)


@case
def a_rank_whose_drive_fails_while_they_communicate(directory: Path) -> None:
    """The other one waits in the optimizer until it catches up. Then the orders are the same."""
    drive_fails(directory, Layered)


@case
def one_directory_for_all_ranks(directory: Path) -> None:
    rank = distributed.get_rank()
    pair = Pair(fsdp, torch.optim.AdamW, {"lr": 0.01}, directory)
    with pair.swapped:
        pair.train(range(2))
        names = gathered(sorted(path.name for path in directory.iterdir()))
        assert names[0] == names[1]
        assert [name.rpartition("-")[0] for name in names[0]] == ["swap-r0", "swap-r1"]
        distributed.barrier()
        if rank == 0:
            pair.swapped.close()
        distributed.barrier()
        assert [path.name for path in directory.iterdir()] == names[0][1:]
        distributed.barrier()  # both have looked, before the other one goes too
        if rank == 1:
            pair.check()
    distributed.barrier()
    assert os.listdir(directory) == []


def in_memory() -> int:
    """Bytes of all tensors that Python can reach, each storage once."""
    gc.collect()
    found: dict[int, int] = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter):
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def drive_instead_of_memory(directory: Path, dtype: torch.dtype, **how: Any) -> None:
    layers = [nn.Linear(256, 256, bias=False, dtype=dtype) for _ in range(16)]
    model = fsdp(nn.Sequential(*layers))
    part = 256 * 256 * 4 // RANKS
    states = 3 if how.get("master_weights") else 2
    before = in_memory()
    with SwappedOptimizer(
        model.parameters(), torch.optim.AdamW, swap_dir=directory, sub_group_bytes=1, **how
    ) as swapped:
        for step in range(3):
            model(torch.full((2, 256), 1.0 + step, dtype=dtype)).sum().backward()
            swapped.step()
            swapped.zero_grad()
        stats = swapped.stats()
        assert stats["state_bytes"] == states * part * len(layers)
        assert stats["buffer_bytes"] <= 3 * states * part
        assert in_memory() - before <= stats["buffer_bytes"] + part // 2
    assert in_memory() - before <= part // 2


@case
def states_are_not_in_memory(directory: Path) -> None:
    drive_instead_of_memory(directory, torch.float32)


@case
def masters_are_not_in_memory(directory: Path) -> None:
    drive_instead_of_memory(directory, torch.bfloat16, master_weights=True)


if __name__ == "__main__":
    run_cases(warm_up)
