"""DataLoader workers make their own handles; inherited pinned tensors are readable (D-08)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import aio
from support.buffers import fill, locked, pattern, raw, tensor_of

COUNT = 24
NBYTES = 70_001


class Tensors(Dataset[torch.Tensor]):
    """Files read by a handle that is made where it is first needed."""

    def __init__(self, directory: Path, backend: str, shared: torch.Tensor) -> None:
        self.directory = directory
        self.backend = backend
        self.shared = shared
        self.handle: Any = None

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.handle is None:
            self.handle = aio.aio_handle(backend=self.backend)
            if self.handle.is_pinned(self.shared):
                raise RuntimeError("pinned in a process that has not locked it")
        target = locked(self.handle, NBYTES) if index % 2 else torch.empty(NBYTES).byte()
        self.handle.sync_pread(target, self.directory / f"{index}")
        return torch.cat([target, self.shared[:4]])


@pytest.fixture
def dataset(directory: Path, backend: str, make_handle: Any) -> Tensors:
    for index in range(COUNT):
        (directory / f"{index}").write_bytes(pattern(NBYTES, index))
    shared = locked(make_handle(backend), 4096)
    fill(shared, bytes([7]) * 4096)
    return Tensors(directory, backend, shared)


def check(loader: DataLoader[torch.Tensor]) -> None:
    for index, batch in enumerate(loader):
        assert raw(batch) == pattern(NBYTES, index) + bytes([7]) * 4


@pytest.mark.parametrize("persistent", [False, True])
def test_handles_made_in_the_workers(
    dataset: Tensors, directory: Path, make_handle: Any, persistent: bool
) -> None:
    """With requests of the parent in flight when the workers are forked, for two epochs."""
    handle = make_handle(dataset.backend)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=persistent,
        timeout=60,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 and later, about forks beside threads
        for epoch in range(2):
            for index in range(10):
                handle.async_pwrite(tensor_of(pattern(300_001, index)), directory / f"w{index}")
            check(loader)
            assert handle.wait() == 10
            for index in range(10):
                assert (directory / f"w{index}").read_bytes() == pattern(300_001, index)
            assert handle.is_pinned(dataset.shared), epoch


def test_a_handle_that_was_inherited_says_so(dataset: Tensors, make_handle: Any) -> None:
    dataset.handle = make_handle(dataset.backend)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = iter(loader)
        with pytest.raises(RuntimeError, match="fork"):
            next(batches)
