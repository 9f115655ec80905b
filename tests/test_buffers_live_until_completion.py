"""The memory of a request is kept until it has ended, whoever else lets go (D-02)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import _deepnvme
import aio
import support.torch_threads  # noqa: F401
from support.buffers import locked, pattern, tensor_of
from support.counters import counters

NBYTES = 1 << 18
COUNT = 100
MAKERS: list[Callable[[bytes], Any]] = [
    lambda data: np.frombuffer(data, np.uint8).copy(),
    lambda data: bytes(data),
    bytearray,
    lambda data: memoryview(bytearray(data)),
]


def test_writes_from_temporaries(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, intra_op_parallelism=2)
    for index in range(COUNT):
        handle.async_pwrite(torch.full((NBYTES,), index, dtype=torch.uint8), directory / f"{index}")
        torch.full((NBYTES,), 255, dtype=torch.uint8)
    assert handle.wait() == COUNT
    for index in range(COUNT):
        assert (directory / f"{index}").read_bytes() == bytes([index]) * NBYTES


def test_writes_from_pinned_temporaries(directory: Path, backend: str, make_handle: Any) -> None:
    """The pool must not hand the region of a request in flight to the next allocation."""
    handle = make_handle(backend, queue_depth=2, block_size=16384)
    for index in range(COUNT):
        handle.async_pwrite(locked(handle, NBYTES).fill_(index), directory / f"{index}")
    assert handle.wait() == COUNT
    for index in range(COUNT):
        assert (directory / f"{index}").read_bytes() == bytes([index]) * NBYTES


def test_reads_into_temporaries(directory: Path, backend: str, make_handle: Any) -> None:
    """What is allocated next never receives the bytes of a read whose buffer was dropped."""
    handle = make_handle(backend, queue_depth=4, block_size=16384)
    (directory / "file").write_bytes(bytes([7]) * NBYTES)
    churn: list[torch.Tensor] = []
    for index in range(COUNT):
        if index % 2:
            handle.async_pread(torch.empty(NBYTES, dtype=torch.uint8), directory / "file")
            churn.append(torch.full((NBYTES,), 9, dtype=torch.uint8))
        else:
            handle.async_pread(locked(handle, NBYTES), directory / "file")
            churn.append(locked(handle, NBYTES).fill_(9))
    assert handle.wait() == COUNT
    for tensor in churn:
        assert bool((tensor == 9).all())


def test_numpy_and_bytes_temporaries(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    for index in range(COUNT):
        maker = MAKERS[index % len(MAKERS)]
        handle.async_pwrite(maker(pattern(NBYTES, index)), directory / f"{index}")
        bytearray(b"\xff") * NBYTES
    assert handle.wait() == COUNT
    for index in range(COUNT):
        assert (directory / f"{index}").read_bytes() == pattern(NBYTES, index)


def test_a_tensor_that_gets_other_storage(directory: Path, backend: str, make_handle: Any) -> None:
    """`.data = other` between submit and wait: the request goes on with the memory it was given."""
    handle = make_handle(backend)
    for index in range(20):
        tensor = tensor_of(pattern(NBYTES, index))
        handle.async_pwrite(tensor, directory / f"{index}")
        tensor.data = torch.full((NBYTES,), 255, dtype=torch.uint8)
    gc.collect()
    assert handle.wait() == 20
    for index in range(20):
        assert (directory / f"{index}").read_bytes() == pattern(NBYTES, index)


def test_storage_that_shrinks_or_grows(directory: Path, backend: str, make_handle: Any) -> None:
    """resize_ frees or moves torch's memory in flight: refused by torch, or harmless to others."""
    handle = make_handle(backend, queue_depth=2, block_size=16384)
    (directory / "file").write_bytes(bytes([7]) * NBYTES)
    churn: list[torch.Tensor] = []
    for index in range(20):
        tensor = locked(handle, NBYTES)
        handle.async_pread(tensor, directory / "file")
        resized = tensor if index % 4 < 2 else tensor.untyped_storage()
        with suppress(RuntimeError):
            resized.resize_(0 if index % 2 else 2 * NBYTES)
        churn.append(torch.full((NBYTES,), 9, dtype=torch.uint8))
        churn.append(locked(handle, NBYTES).fill_(9))
    assert handle.wait() == 20
    for tensor in churn:
        assert bool((tensor == 9).all())


def test_everything_is_let_go_afterwards(directory: Path, backend: str) -> None:
    gc.collect()
    in_use = _deepnvme.pin.stats()["in_use"]
    with counters(), aio.aio_handle(backend=backend) as handle:
        handle.sync_pwrite(locked(handle, NBYTES).fill_(1), directory / "file")
        for _ in range(20):
            handle.async_pwrite(locked(handle, NBYTES), directory / "file")
            handle.submit_pread(locked(handle, NBYTES), directory / "file")
            assert handle.wait() == 1
        handle.submit_pwrite(b"x", directory / "file").result()
    assert _deepnvme.pin.stats()["in_use"] == in_use
