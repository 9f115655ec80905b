"""torch.save and torch.load as ds_io times them, by themselves or through a handle."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import aio
from aio.ds_io.buffers import host_buffer
from aio.ds_io.compare import compare_tensors
from aio.ds_io.engines import Engine, open_handle
from aio.ds_io.options import FAST, Options
from aio.ds_io.writer import HandleWriter
from aio.measure.files import drop_cache, sync_file
from aio.measure.harness import BenchError
from aio.measure.transfers import bytes_by_path, moved_since


class TorchEngine(Engine):
    """torch_io and torch_fastio: the tensor as torch.save writes it and torch.load reads it."""

    def __init__(self, options: Options, rank: int, folder: Path, stack: ExitStack) -> None:
        super().__init__(options, rank, folder, stack)
        self._handle: aio.aio_handle | None = None
        self._loaded: torch.Tensor | None = None
        self._before: dict[str, int] = {}
        if options.engine == FAST:
            by_accelerator = options.use_accelerator_pin_memory
            self._block = stack.enter_context(host_buffer(options.fast_io_size, by_accelerator))
            self._handle = open_handle(options, stack)

    def _make(self, path: Path) -> None:
        self._save(path)

    def prepare(self, loop: int) -> str:
        self._loaded = None
        if self._handle is not None:
            self._before = bytes_by_path(self._handle)
        return super().prepare(loop)

    def _spoil(self) -> None:
        if not self._options.reading:  # torch.load makes a tensor of its own
            super()._spoil()

    def transfer(self, loop: int) -> None:
        path = self.path(loop)
        if self._options.reading:
            place = self._tensor.device
            self._loaded = torch.load(path, map_location=place, weights_only=True, mmap=False)
            return
        if self._handle is None:
            self._save(path)
            sync_file(path)
            return
        with HandleWriter(path, self._handle, self._block) as file:
            self._save(file)
        if moved_since(self._handle, self._before)["buffered"] > 0 or self._options.fsync:
            self._handle.fsync(str(path))

    def _save(self, target: Any) -> None:
        zipped = not self._options.torch_legacy_save
        torch.save(self._tensor, target, _use_new_zipfile_serialization=zipped)

    def account(self, loop: int) -> dict[str, int]:
        """The tensor's bytes; what torch.save adds to them is not counted."""
        wanted = self._options.io_size
        path = self.path(loop)
        if self._loaded is not None and self._loaded.nbytes != wanted:
            raise BenchError(f"{path}: {self._loaded.nbytes} of {wanted} bytes loaded")
        size = path.stat().st_size
        if self._handle is None:
            if size < wanted:
                raise BenchError(f"{path}: {size} bytes long, which cannot hold {wanted}")
            return {"fixed": 0, "direct": 0, "staged": 0, "buffered": wanted}
        moved = moved_since(self._handle, self._before)
        if not wanted <= sum(moved.values()) == size:
            raise BenchError(f"{path}: {sum(moved.values())} bytes completed, {size} in the file")
        # In the proportions of the whole file, so that they add up to the tensor.
        shares = {name: nbytes * wanted // size for name, nbytes in moved.items()}
        largest = max(shares, key=lambda name: shares[name])
        return {**shares, largest: shares[largest] + wanted - sum(shares.values())}

    def check(self, loop: int) -> None:
        path = self.path(loop)
        loaded = self._loaded
        if loaded is None:
            drop_cache(path)
            loaded = torch.load(path, map_location=self._tensor.device, weights_only=True)
        compare_tensors(loaded, self._tensor, path)

    def latency(self) -> Mapping[str, object] | None:
        return None if self._handle is None else self._handle.stats()["latency"]
