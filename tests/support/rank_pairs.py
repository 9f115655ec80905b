"""Models that ranks divide, each twice: one for an optimizer of torch, one for a swapped one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.utils._pytree import tree_map

from aio.swap import SwappedOptimizer
from support.ranks import RANKS
from support.swapped import bits

PLAIN, SWAPPED = 0, 1
MESHES: dict[str, Any] = {}


def part_bits(tree: Any) -> Any:
    """Bits of a nested structure; of a DTensor, those that this rank has, and what they are of."""
    from torch.distributed.tensor import DTensor

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        mesh = leaf.device_mesh.mesh.tolist()
        whole = str((mesh, leaf.placements, leaf.shape, leaf.stride(), leaf.requires_grad))
        return {"part": leaf.detach().to_local(), "of": whole}

    return bits(tree_map(one, tree))


def states_of(optimizer_or_dict: Any) -> dict[Any, Any]:
    known = isinstance(optimizer_or_dict, Mapping)
    state_dict = optimizer_or_dict if known else optimizer_or_dict.state_dict()
    return {key: part_bits(dict(state)) for key, state in state_dict["state"].items()}


class Net(nn.Module):
    """Parameters that two ranks divide evenly, unevenly, and so that one has nothing; one without
    a gradient, and one that is frozen.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(24, 34), nn.Tanh(), nn.Linear(34, 5), nn.Linear(5, 1))
        self.unused = nn.Parameter(torch.ones(7))
        self.frozen = nn.Parameter(torch.ones(6, 5), requires_grad=False)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator).mul_(0.3).to(dtype)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.layers(inputs)


class Pair:
    """The same model twice, one trained by an optimizer of torch, one by a swapped one."""

    def __init__(
        self,
        divided: Callable[[nn.Module], nn.Module],
        cls: type[torch.optim.Optimizer],
        kwargs: Mapping[str, Any],
        swap_dir: Any,
        *,
        dtype: torch.dtype = torch.float32,
        make_plain: Callable[..., Any] | None = None,
        **how: Any,
    ) -> None:
        self.models = [divided(Net(dtype)), divided(Net(dtype))]
        self.params = [list(model.parameters()) for model in self.models]
        self.plain = (make_plain or cls)(self.params[PLAIN], **kwargs)
        how = {"sub_group_bytes": 4096, "cache_bytes": 5000, **how}
        named = self.models[SWAPPED].named_parameters()
        self.swapped = SwappedOptimizer(named, cls, swap_dir=swap_dir, **how, **kwargs)
        self.optimizers: list[Any] = [self.plain, self.swapped]

    def backward(self, step: int, factor: float = 1.0) -> None:
        """Gradients of both models, of data that is each rank's own, times a factor."""
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(100 * step + distributed.get_rank())
            dtype = next(model.parameters()).dtype
            inputs = torch.randn(4, 24, generator=generator).to(dtype)
            (model(inputs).square().mean() * factor).backward()

    def train(self, steps: Sequence[int], clip: float | None = 0.5) -> None:
        """Both, and compare them after every step."""
        for step in steps:
            self.backward(step)
            norms = []
            for params, optimizer in zip(self.params, self.optimizers, strict=True):
                if clip is not None:
                    norms.append(nn.utils.clip_grad_norm_(params, clip))
                optimizer.step()
            assert part_bits(norms[:1]) == part_bits(norms[1:])
            self.check()

    def check(self) -> None:
        assert part_bits(self.params[SWAPPED]) == part_bits(self.params[PLAIN])
        assert states_of(self.swapped) == states_of(self.plain)


def fsdp(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    frozen = {p for p in model.parameters() if not p.requires_grad}
    return fully_shard(model, mesh=MESHES["ranks"], ignored_params=frozen)


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)


def tensor_parallel(model: Any, mesh: Any = None) -> nn.Module:
    """The first layers only, so that there are ordinary parameters too."""
    from torch.distributed.tensor import parallel

    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    parallel.parallelize_module(model.layers, mesh or MESHES["ranks"], plan)
    return model


def fsdp_and_tensor_parallel(model: Any) -> nn.Module:
    """In two dimensions of a mesh, which makes placements of a kind of their own."""
    from torch.distributed.fsdp import fully_shard

    mesh = MESHES["dp, tp"]
    return fully_shard(tensor_parallel(model, mesh["tp"]), mesh=mesh["dp"])


class Masters:
    """What master weights are: the optimizer on float32 copies."""

    def __init__(self, params: list[Any], **kwargs: Any) -> None:
        self.params = params
        self.masters = [
            nn.Parameter(p.detach().float(), requires_grad=p.requires_grad) for p in params
        ]
        self.optimizer = torch.optim.AdamW(self.masters, **kwargs)

    def zero_grad(self) -> None:
        for param in self.params:
            param.grad = None

    def step(self) -> None:
        for param, master in zip(self.params, self.masters, strict=True):
            master.grad = None if param.grad is None else param.grad.float()
        self.optimizer.step()
        for param, master in zip(self.params, self.masters, strict=True):
            if param.grad is not None:
                param.detach().copy_(master.detach())

    def state_dict(self) -> dict[str, Any]:
        states = self.optimizer.state_dict()["state"]
        masters = {i: master.detach() for i, master in enumerate(self.masters)}
        return {"state": {i: {**s, "master_weight": masters[i]} for i, s in states.items()}}


class Layered(torch.optim.Optimizer):
    """Communicates in its step, for the norm of each whole parameter, and keeps states of many
    kinds.
    """

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                    state["average"] = p.detach().to_local().clone()  # no DTensor
                state["momentum"].mul_(0.9).add_(p.grad)
                norm = p.detach().square().sum().full_tensor().sqrt().item()
                state["norms"] = [*state.get("norms", [])[-2:], norm]
                p.add_(state["momentum"], alpha=-group["lr"] * norm / math.sqrt(p.numel()))
                state["average"].lerp_(p.detach().to_local(), 0.1)


def warm_up(directory: Path) -> None:
    """What torch starts at its first use and keeps: threads, connections of meshes."""
    from torch.distributed.device_mesh import init_device_mesh

    MESHES["ranks"] = init_device_mesh("cpu", (RANKS,))
    MESHES["dp, tp"] = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("dp", "tp"))
    for divided in (fsdp, ddp, tensor_parallel):
        model = divided(Net())
        model(torch.ones(4, 24)).sum().backward()
