"""Training by DeepSpeed with its states on a drive, a step for each line of JSON that asks for one.

Runs as a script, in an interpreter that has torch and deepspeed, and finds this project for "aio".
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

_shared: Any = importlib.import_module("deepspeed_worker")  # beside this script
cpu_seconds = _shared.cpu_seconds
Answer = dict[str, Any]

WIDTH = 2048
BATCH = 4
TILE = 16_000_000  # parameters of a sub-group: four layers


class StepWorker:
    """A DeepSpeed engine on a row of linear layers, and its states in a folder."""

    def __init__(
        self, engine: str, folder: str, parameters: int, block_size: int, depth: int
    ) -> None:
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
        if engine == "aio":
            import aio.deepspeed

            aio.deepspeed.enable()
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        # None, so that its communication operator is not built.
        vars(deepspeed.ops)["__compatible_ops__"] = defaultdict(bool)
        self._folder = Path(folder)
        store = f"file://{tempfile.mkdtemp()}/store"
        torch.distributed.init_process_group("gloo", store, rank=0, world_size=1)
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
        self._aio = {
            "block_size": block_size,
            "queue_depth": depth,
            "single_submit": False,
            "overlap_events": True,
            "intra_op_parallelism": 1,
        }
        layers = -(-parameters // (WIDTH * WIDTH))
        self.parameters = layers * WIDTH * WIDTH
        self._engine = self._make_engine(deepspeed, layers)
        self._handle: Any = None
        self.version = deepspeed.__version__

    def _make_engine(self, deepspeed: Any, layers: int) -> Any:
        torch.manual_seed(0)
        options: dict[str, Any] = {"bias": False, "dtype": torch.bfloat16}
        row = [torch.nn.Linear(WIDTH, WIDTH, **options) for _ in range(layers)]
        model = torch.nn.Sequential(*row)
        offload = {"device": "nvme", "nvme_path": str(self._folder), "buffer_count": 5}
        config = {
            "train_micro_batch_size_per_gpu": BATCH,
            "zero_force_ds_cpu_optimizer": False,
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": True},
            "zero_optimization": {
                "stage": 3,
                "sub_group_size": TILE,
                "offload_optimizer": offload,
            },
            "aio": self._aio,
        }
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        return engine

    def step(self) -> Answer:
        """Forward, backward and step; the loss tells that both engines train the same."""
        batch = torch.ones(BATCH, WIDTH, dtype=torch.bfloat16)
        cpu, start = cpu_seconds(), time.perf_counter()
        loss = self._engine(batch).float().square().mean()
        self._engine.backward(loss)
        self._engine.step()
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
        # Master and two moments, float32, read and written.
        nbytes = 2 * 12 * self.parameters
        return {
            **{"seconds": seconds, "cpu_seconds": cpu, "nbytes": nbytes, "operations": 1},
            **{"loss": loss.item(), "parameters": self.parameters},
        }

    def checkpoint(self, nbytes: int, buffer: int) -> Answer:
        """torch.save of one tensor through FastFileWriter, to a new file, fsync included."""
        import deepspeed.io.fast_file_writer as writer
        from deepspeed.ops.op_builder import AsyncIOBuilder

        # The CPU accelerator has no UtilsBuilder: its one function that is needed, in Python.
        writer.UtilsBuilder = _Utils
        if self._handle is None:
            self._handle = AsyncIOBuilder().load(verbose=False).aio_handle(**self._aio)
            self._pinned = self._handle.new_cpu_locked_tensor(
                buffer, torch.empty(0, dtype=torch.uint8)
            )
            self._content = torch.ones(nbytes // 4)
        path = self._folder / "checkpoint.pt"
        path.unlink(missing_ok=True)
        settings = writer.FastFileWriterConfig(self._handle, self._pinned)
        cpu, start = cpu_seconds(), time.perf_counter()
        file = writer.FastFileWriter(str(path), settings)
        torch.save(self._content, f=file, _use_new_zipfile_serialization=False)
        file.close()
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
        if path.stat().st_size < nbytes:
            raise RuntimeError(f"{path} has {path.stat().st_size} bytes of {nbytes}")
        return {"seconds": seconds, "cpu_seconds": cpu, "nbytes": nbytes, "operations": 1}


class _Utils:
    """What FastFileWriter takes of DeepSpeed's utils operator."""

    def load(self) -> _Utils:
        return self

    @staticmethod
    def cast_to_byte_tensor(tensors: Any) -> Any:
        """The bytes of one tensor, or of each in a list."""
        if isinstance(tensors, list):
            return [_Utils.cast_to_byte_tensor(one) for one in tensors]
        return tensors.reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    _shared.serve(StepWorker)
