"""Training by DeepSpeed on the CPU, in a child of its own: a small model, few steps, exact losses.

Imported by the scripts that run where DeepSpeed is installed.
"""

from __future__ import annotations

import gc
import logging
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import aio
import aio.deepspeed

# Of a layer. Half of its parameters, as float32, are more than 1 MiB, below which nothing is
# swapped; and so are all as bfloat16.
WIDTH = 768
STEPS = 3
TILE = 500_000  # parameters of a sub-group: the two wide layers are two


def start(store: str) -> None:
    """Enable, and join the group of WORLD_SIZE processes that meets at the file ``store``."""
    aio.deepspeed.enable()
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # None, so that its communication operator is not built.
    vars(deepspeed.ops)["__compatible_ops__"] = defaultdict(bool)
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)


def model() -> torch.nn.Module:
    """The same parameters every time."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1)]
    return torch.nn.Sequential(*layers)


def batches(steps: int, first: int = 0) -> Iterator[torch.Tensor]:
    """Those of the steps from ``first`` on, for this rank."""
    rank = torch.distributed.get_rank()
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        yield torch.randn(4, WIDTH, generator=generator)


def config(zero: dict[str, Any], bf16: bool = False, stage: int = 3) -> dict[str, Any]:
    """A DeepSpeed configuration, for an optimizer of torch."""
    return {
        "train_micro_batch_size_per_gpu": 4,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": bf16},
        "zero_optimization": {"stage": stage, **zero},
        "aio": {"block_size": 1 << 18, "queue_depth": 8, "overlap_events": True},
    }


def nvme_optimizer(folder: Path, pipeline: bool = False) -> dict[str, Any]:
    """offload_optimizer on a drive; pipelining needs 12 buffers, for three tiles of four states."""
    return {
        "sub_group_size": TILE,
        "offload_optimizer": {
            "device": "nvme",
            "nvme_path": str(folder),
            "buffer_count": 13 if pipeline else 5,
            "pipeline_read": pipeline,
            "pipeline_write": pipeline,
        },
    }


def nvme_params(folder: Path) -> dict[str, Any]:
    """offload_param on a drive, which runs only without prefetching."""
    return {
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_param_persistence_threshold": 1000,
        "offload_param": {
            "device": "nvme",
            "nvme_path": str(folder),
            "buffer_count": 5,
            "buffer_size": 700_000,
            "max_in_cpu": 0,
        },
    }


def engine_of(settings: dict[str, Any]) -> Any:
    """A DeepSpeed engine on the model, with AdamW."""
    import deepspeed

    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=settings)
    return engine


def steps(engine: Any, count: int = STEPS, first: int = 0) -> list[float]:
    """The losses of so many steps."""
    losses = []
    for batch in batches(count, first):
        dtype = torch.bfloat16 if engine.bfloat16_enabled() else torch.float32
        loss = engine(batch.to(dtype)).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def param_swappers(engine: Any) -> list[Any]:
    """Those of offload_param; all parameters share one, if there is one."""
    found = {id(param.nvme_swapper): param.nvme_swapper for param in engine.module.parameters()}
    return [swapper for swapper in found.values() if swapper is not None]


def moved(engine: Any) -> dict[str, int]:
    """Bytes read and written by the handles that its swappers made, all of which are ours."""
    names = ("aio_handle", "read_aio_handle", "write_aio_handle")
    names += ("aio_read_handle", "aio_write_handle")
    swappers = [getattr(engine.optimizer, "optimizer_swapper", None), *param_swappers(engine)]
    handles = [vars(one)[name] for one in swappers if one for name in names if name in vars(one)]
    totals = {"read": 0, "write": 0}
    for handle in handles:
        if isinstance(handle, type):  # of the swapper of parameters: what it makes handles with
            continue
        for way, nbytes in handle.stats()["bytes"].items():
            totals[way] += sum(nbytes.values())
    return totals


@contextmanager
def engine(settings: dict[str, Any]) -> Iterator[Any]:
    """An engine that is destroyed at the end, with what DeepSpeed keeps of it beyond that.

    Its destroy() leaves the optimizer, which the hooks of parameters refer to, so the swap buffers
    stay locked; here they go.
    """
    made = engine_of(settings)
    try:
        yield made
    finally:
        made.destroy()
        vars(made.optimizer).pop("optimizer_swapper", None)
        for swapper in param_swappers(made):
            swapper.buffers = swapper.partitioned_swap_buffer = swapper.partitioned_swap_pool = None
        del made
        gc.collect()


def live_bytes() -> int:
    """Pinned by this library, now."""
    return int(aio.pinned_stats()["in_use"])
