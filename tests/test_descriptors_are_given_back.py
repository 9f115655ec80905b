"""Descriptors and deleted files stay constant over thousands of operations, failed too (C-14)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
import support.torch_threads  # noqa: F401
from support.buffers import pattern, tensor_of
from support.counters import counters, until
from support.in_flight import TEXT, refuses_text

NBYTES = 5001


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """The block ends with as many descriptors as it began with."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    until(
        lambda: len(os.listdir("/proc/self/fd")) == before,
        f"{len(os.listdir('/proc/self/fd'))} descriptors are {before} again",
    )


def deleted_files() -> int:
    """How many descriptors of this process keep a deleted file allocated."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").endswith("(deleted)")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return count


def test_two_thousand_operations(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    tensor = tensor_of(pattern(NBYTES))
    handle.sync_pwrite(tensor, directory / "warm")
    with no_more_descriptors():
        for index in range(2000):
            path = directory / f"{index % 100}"
            if index % 4 == 0:
                handle.sync_pwrite(tensor, path)
            elif index % 4 == 1:
                handle.submit_pwrite(tensor, path).result()
            elif index % 4 == 2:
                handle.async_pwrite(tensor, path)
            else:
                handle.pwrite_many([(tensor, path)])
        assert handle.wait() == 500


@pytest.mark.parametrize("when", ["in flight", "afterwards"])
def test_files_that_are_unlinked(
    directory: Path, backend: str, make_handle: Any, when: str
) -> None:
    handle = make_handle(backend)
    handle.sync_pwrite(torch.ones(1), directory / "warm")
    before = deleted_files()
    with no_more_descriptors():
        for index in range(50):
            path = directory / f"{index}"
            handle.async_pwrite(tensor_of(pattern(200_001)), path)
            handle.async_pwrite(tensor_of(pattern(NBYTES)), path, 300_000)
            if when == "afterwards":
                assert handle.wait() == 2
            path.unlink()
            assert when == "in flight" or deleted_files() == before
        assert handle.wait() == (100 if when == "in flight" else 0)
        assert deleted_files() == before
    assert [path.name for path in directory.iterdir()] == ["warm"]


def test_failures(directory: Path, backend: str, make_handle: Any) -> None:
    """Opened and then refused: too short, a directory, a bad argument, failed in flight."""
    bad = refuses_text()
    handle = make_handle(backend)
    path = directory / "file"
    handle.sync_pwrite(tensor_of(pattern(NBYTES)), path)
    overlapping = torch.zeros(1).expand(10)
    with no_more_descriptors():
        for _ in range(100):
            calls: list[Callable[[], Any]] = [
                lambda: handle.sync_pread(torch.empty(NBYTES), path),
                lambda: handle.sync_pread(torch.empty(NBYTES), directory),
                lambda: handle.sync_pread(torch.empty(NBYTES), directory / "missing"),
                lambda: handle.sync_pwrite(tensor_of(TEXT), bad),
                lambda: handle.submit_pwrite(tensor_of(TEXT), bad).result(),
                lambda: handle.pwrite_many([(tensor_of(TEXT), bad), (b"x", directory)]),
            ]
            for call in calls:
                with pytest.raises(aio.AioError):
                    call()
            with pytest.raises(ValueError, match="overlap"):
                handle.sync_pread(overlapping, path)
            with pytest.raises(TypeError):
                handle.sync_pread(None, path)


def test_handles(directory: Path, backend: str) -> None:
    tensor = tensor_of(pattern(NBYTES))
    with aio.aio_handle(backend=backend) as handle:
        handle.sync_pwrite(tensor, directory / "warm")
    with counters():
        for index in range(30):
            handle = aio.aio_handle(backend=backend, intra_op_parallelism=1 + index % 3)
            handle.async_pwrite(tensor, directory / "file")
            if index % 2:
                handle.close()
            del handle
