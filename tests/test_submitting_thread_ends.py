"""The thread that made a request may end before the request does (C-09)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch

from support.buffers import pattern, raw, tensor_of

ROUNDS = 170  # of each engine on each kind of storage, a thousand of all
NBYTES = (1 << 18) + 17
LARGE = 8 << 20


def test_writes(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, intra_op_parallelism=2)
    source = pattern(LARGE + ROUNDS)
    for index in range(ROUNDS):
        data = source[index : index + (NBYTES if index % 34 else LARGE)]
        path = directory / f"{index}"
        thread = threading.Thread(target=handle.async_pwrite, args=(tensor_of(data), path))
        thread.start()
        thread.join()
        assert handle.wait() == 1
        assert path.read_bytes() == data
        path.unlink()


def test_reads_by_many_threads_at_once(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    data = pattern(NBYTES)
    (directory / "file").write_bytes(data)
    tensors = [torch.zeros(NBYTES, dtype=torch.uint8) for _ in range(20)]
    threads = [
        threading.Thread(target=handle.async_pread, args=(tensor, directory / "file"))
        for tensor in tensors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handle.wait() == len(tensors)
    for tensor in tensors:
        assert raw(tensor) == data


def test_a_future_made_by_a_thread_that_is_gone(
    directory: Path, backend: str, make_handle: Any
) -> None:
    handle = make_handle(backend)
    futures: list[Any] = []
    data = pattern(NBYTES)
    thread = threading.Thread(
        target=lambda: futures.append(handle.submit_pwrite(tensor_of(data), directory / "file"))
    )
    thread.start()
    thread.join()
    assert futures[0].result() == NBYTES
    assert (directory / "file").read_bytes() == data
