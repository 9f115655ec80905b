"""Checkpoints on two ranks: cases of rank_cases.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from aio.swap import SwappedOptimizer
from support.rank_pairs import (
    PLAIN,
    SWAPPED,
    Masters,
    Net,
    Pair,
    fsdp,
    fsdp_and_tensor_parallel,
    part_bits,
    states_of,
)
from support.ranks import case


@case
def checkpoints(directory: Path) -> None:
    """Train 3, save, train 3 equals train 6, in this optimizer, a new one, and one of torch."""
    rank = distributed.get_rank()
    path = directory / f"checkpoint-{rank}"
    pair = Pair(fsdp, torch.optim.AdamW, {"lr": 0.01}, directory)
    with pair.swapped as swapped:
        pair.train(range(3))
        swapped.save(path)
        at_three = [p.detach().clone() for p in pair.params[PLAIN]]
        of_torch = pair.plain.state_dict()
        saved = torch.load(path, weights_only=True)
        parts = {
            index: part_bits({key: getattr(v, "to_local", lambda v=v: v)() for key, v in s.items()})
            for index, s in of_torch["state"].items()
        }
        assert states_of(saved) == parts
        state_dict = swapped.state_dict()
        pair.train(range(3, 6))  # what is loaded replaces newer states

        def again() -> None:
            for params in pair.params:
                for param, old in zip(params, at_three, strict=True):
                    param.detach().copy_(old)

        again()
        pair.plain.load_state_dict(state_dict)
        swapped.load(path)
        pair.train(range(3, 6))
        again()
        swapped.load_state_dict(torch.optim.AdamW(pair.params[PLAIN]).state_dict())  # nothing
        swapped.load_state_dict(of_torch if rank else state_dict)
        pair.plain.load_state_dict(state_dict)
        pair.train(range(3, 6))


@case
def checkpoints_that_do_not_fit(directory: Path) -> None:
    rank = distributed.get_rank()
    pair = Pair(fsdp, torch.optim.AdamW, {"lr": 0.01}, directory)
    whole = Net()
    plain = torch.optim.AdamW(whole.parameters())
    whole(torch.ones(1, 24)).sum().backward()
    plain.step()
    with (
        pair.swapped as swapped,
        SwappedOptimizer(whole.parameters(), torch.optim.AdamW, swap_dir=directory) as undivided,
    ):
        pair.train(range(2))
        swapped.save(directory / f"checkpoint-{rank}")
        distributed.barrier()
        before = states_of(swapped)
        ours = directory / f"checkpoint-{rank}"
        with pytest.raises(ValueError, match=f"rank {1 - rank} of 2, but this is rank {rank} of 2"):
            swapped.load(directory / f"checkpoint-{1 - rank}")
        with pytest.raises(ValueError, match="ordinary tensor"):
            undivided.load(ours)
        with pytest.raises(ValueError, match="is a DTensor that is divided among"):
            undivided.load_state_dict(swapped.state_dict())
        with pytest.raises(ValueError, match="whole states of DTensors"):
            swapped.load_state_dict(plain.state_dict())
        saved = torch.load(ours, weights_only=True)
        saved["local_parts"]["world_size"] = 3
        torch.save(saved, ours)
        with pytest.raises(ValueError, match=f"rank {rank} of 3"):
            swapped.load(ours)
        saved["local_parts"].update(world_size=2, meshes=[[[0, 1]]])
        torch.save(saved, ours)
        with pytest.raises(ValueError, match=r"divided among ranks \[\[0, 1\]\]"):
            swapped.load(ours)
        assert states_of(swapped) == before
        pair.train(range(2, 4))


@case
def checkpoints_of_torch(directory: Path) -> None:
    """torch.distributed.checkpoint saves and loads a swapped optimizer as any other."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    pair = Pair(fsdp, torch.optim.AdamW, {"lr": 0.01}, directory)
    fresh = Pair(fsdp, torch.optim.AdamW, {"lr": 0.01}, directory)
    with pair.swapped as swapped, fresh.swapped as resumed:
        pair.train(range(3))
        for model, optimizer in zip(pair.models, pair.optimizers, strict=True):
            model.zero_grad()
            found = get_optimizer_state_dict(model, optimizer)
            if optimizer is pair.plain:
                of_torch = states_of(found)
        assert states_of(found) == of_torch
        of_swapped = states_of(swapped)
        checkpoint.save({"optimizer": found}, checkpoint_id=str(directory / "checkpoint"))
        part: Any = {"strict": False}  # torch's word for parameters without a state
        for saved, loaded in [
            (part, part),
            ({**part, "full_state_dict": True}, {**part, "full_state_dict": True}),
            (
                {**part, "full_state_dict": True, "cpu_offload": True},  # only rank 0 has it
                {**part, "full_state_dict": True, "broadcast_from_rank0": True},
            ),
            ({**part, "flatten_optimizer_state_dict": True},) * 2,
        ]:
            for model, optimizer in zip(fresh.models, fresh.optimizers, strict=True):
                moved = get_optimizer_state_dict(
                    pair.models[SWAPPED], swapped, options=StateDictOptions(**saved)
                )
                options = StateDictOptions(**loaded)
                set_optimizer_state_dict(model, optimizer, moved, options=options)
            after = states_of(resumed)
            assert after == states_of(fresh.plain)
            assert {key: after[key] for key in of_swapped} == of_swapped
            fresh.backward(9)
            for optimizer in fresh.optimizers:
                optimizer.step()
                optimizer.zero_grad()
        into = get_optimizer_state_dict(fresh.models[SWAPPED], resumed)
        checkpoint.load({"optimizer": into}, checkpoint_id=str(directory / "checkpoint"))
        set_optimizer_state_dict(fresh.models[SWAPPED], resumed, into)
        after = states_of(resumed)
        assert {key: after[key] for key in of_swapped} == of_swapped


@case
def masters_in_checkpoints_of_torch(directory: Path) -> None:
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    how: Any = {"dtype": torch.bfloat16, "make_plain": Masters, "master_weights": True}
    pair = Pair(fsdp, torch.optim.AdamW, {"lr": 1e-3}, directory, **how)
    fresh = Pair(fsdp, torch.optim.AdamW, {"lr": 1e-3}, directory, **how)
    options = StateDictOptions(strict=False)
    with pair.swapped as swapped, fresh.swapped as resumed:
        pair.train(range(2))
        moved = get_optimizer_state_dict(pair.models[SWAPPED], swapped, options=options)
        set_optimizer_state_dict(fresh.models[SWAPPED], resumed, moved, options=options)
        assert states_of(resumed) == states_of(swapped) == states_of(pair.plain)


class Summing(torch.optim.Optimizer):
    """Keeps what only the sum over ranks makes a value of."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        from torch.distributed.tensor import DTensor, Partial

        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                total = p.grad.to_local().sum().reshape(1)
                state = self.state[p]
                state["sum"] = DTensor.from_local(total, p.device_mesh, [Partial()])
                p.mul_(1 - 1e-3 * state["sum"].full_tensor().item())


@case
def what_cannot_be_saved(directory: Path) -> None:
    pair = Pair(fsdp, Summing, {}, directory)
    with pair.swapped as swapped:
        pair.train(range(3))
        with pytest.raises(TypeError, match=r"'sum'.*'layers.0.weight'.*Partial.*cannot write"):
            swapped.save(directory / "checkpoint")
        pair.train(range(3, 5))
    assert not (directory / "checkpoint").exists()


@case
def strided_shards_are_saved(directory: Path) -> None:
    pair = Pair(fsdp_and_tensor_parallel, torch.optim.AdamW, {"lr": 0.01}, directory)
    kinds = {type(placement).__name__ for p in pair.params[0] for placement in p.placements}
    assert kinds >= {"Shard", "_StridedShard"}
    path = directory / f"checkpoint-{distributed.get_rank()}"
    with pair.swapped as swapped:
        pair.train(range(3), clip=None)
        saved = states_of(swapped)
        swapped.save(path)
        pair.train(range(3, 4), clip=None)
        swapped.load(path)
        assert states_of(swapped) == saved
