"""DeepSpeed's PipelinedOptimizerSwapper, driven as its ZeRO stage 3 drives it.

For `deepspeed_worker.py`, in the interpreter that has deepspeed. Of ZeRO it does what a step on one
rank does: for each sub-group the states are swapped in while the next ones are read, the optimizer
runs on one flat float32 tensor, the bfloat16 parameters get its values, and it is swapped out.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from deepspeed import comm
from deepspeed.runtime.swap_tensor.pipelined_optimizer_swapper import PipelinedOptimizerSwapper

TENSORS = 3  # of a sub-group: master and two moments
BUFFERS = 3 * TENSORS  # one sub-group being read, one being updated, one being written


class SwappedSteps:
    """Sub-groups of `each` bfloat16 parameters of `elements` elements; AdamW with `options`."""

    def __init__(
        self,
        folder: str,
        count: int,
        each: int,
        elements: int,
        block_size: int,
        queue_depth: int,
        options: dict[str, Any],
    ) -> None:
        _join_a_group_of_one(folder)
        self._folder = folder
        self._parts = [
            [torch.randn(elements, dtype=torch.bfloat16) for _ in range(min(each, count - first))]
            for first in range(0, count, each)
        ]
        self._gradients = [[torch.randn_like(p) * 1e-3 for p in part] for part in self._parts]
        # Its files are named for ds_id; it puts memory under a parameter when it swaps it in.
        self._flat = []
        for number in range(len(self._parts)):
            flat: Any = torch.nn.Parameter(torch.empty(0))
            flat.ds_id = f"sub_group_{number}"
            self._flat.append(flat)
        self._optimizer = torch.optim.AdamW(self._flat, **options)
        largest = each * elements
        self._gradient = torch.empty(largest)
        self._swapper = PipelinedOptimizerSwapper(
            swap_config=SimpleNamespace(
                buffer_count=BUFFERS, pipeline_read=True, pipeline_write=True
            ),
            aio_config={
                "block_size": block_size,
                "queue_depth": queue_depth,
                "single_submit": False,
                "overlap_events": True,
                "intra_op_parallelism": 1,
            },
            base_folder=folder,
            optimizer=self._optimizer,
            largest_numel=largest,
            device="cpu",
            dtype=torch.float32,
            timers=None,
        )
        for flat, part in zip(self._flat, self._parts, strict=True):
            self._swapper.initialize_parameters([flat], [torch.cat([p.float() for p in part])])

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters."""
        for number, flat in enumerate(self._flat):
            following = self._flat[number + 1] if number + 1 < len(self._flat) else None
            self._swapper.swap_in_optimizer_state(flat, async_parameter=following)
            flat.grad = self._cast_gradients(number)
            self._optimizer.param_groups[0]["params"] = [flat]
            self._optimizer.step()
            flat.grad = None
            pieces = flat.split([p.numel() for p in self._parts[number]])
            for parameter, piece in zip(self._parts[number], pieces, strict=True):
                parameter.copy_(piece)
            self._swapper.swap_out_optimizer_state(flat, async_swap=following is not None)

    def stored(self) -> int:
        """Bytes of its files."""
        return sum(file.stat().st_size for file in Path(self._folder).rglob("*.swp"))

    def check(self) -> None:
        """RuntimeError unless the files of the first sub-group hold its parameters as they are."""
        path = self._swapper.swap_params_info["sub_group_0"].get_swap_paths()[0]
        sample = torch.from_file(path, size=self._parts[0][0].numel(), dtype=torch.float32)
        if not torch.equal(sample.bfloat16(), self._parts[0][0]):
            raise RuntimeError(
                "DeepSpeed's swap file does not hold the parameters of the last step"
            )

    def _cast_gradients(self, number: int) -> Any:
        """In float32, as the optimizer wants them, in memory that every sub-group uses."""
        at = 0
        for gradient in self._gradients[number]:
            self._gradient[at : at + gradient.numel()].copy_(gradient)
            at += gradient.numel()
        return self._gradient[:at]


def _join_a_group_of_one(folder: str) -> None:
    """It asks for its rank."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1
        )
    if not comm.is_initialized():
        comm.init_distributed("gloo", verbose=False)
