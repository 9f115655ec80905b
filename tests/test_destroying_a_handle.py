"""A handle that goes while operations are pending drains them; later use says so (C-02)."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
import support.torch_threads  # noqa: F401
from support.buffers import pattern, tensor_of
from support.counters import counters
from support.in_flight import TEXT, refuses_text

COUNT = 8
NBYTES = 300_001


def submit(handle: Any, directory: Path) -> None:
    for index in range(COUNT):
        handle.async_pwrite(tensor_of(pattern(NBYTES, index)), directory / f"{index}")


def check(directory: Path) -> None:
    for index in range(COUNT):
        assert (directory / f"{index}").read_bytes() == pattern(NBYTES, index)


def test_del_drains(directory: Path, backend: str) -> None:
    with counters():
        handle = aio.aio_handle(backend=backend)
        submit(handle, directory)
        del handle
        gc.collect()
        check(directory)


def test_close_drains(directory: Path, backend: str) -> None:
    with counters():
        handle = aio.aio_handle(backend=backend)
        submit(handle, directory)
        handle.close()
        check(directory)
        handle.close()


def test_with_drains(directory: Path, backend: str) -> None:
    with counters():
        with aio.aio_handle(backend=backend, intra_op_parallelism=3) as handle:
            submit(handle, directory)
        check(directory)


def test_close_completes_futures(directory: Path, backend: str) -> None:
    with aio.aio_handle(backend=backend) as handle:
        future = handle.submit_pwrite(tensor_of(pattern(NBYTES)), directory / "file")
    assert future.done()
    assert future.result(timeout=0) == NBYTES


def test_a_future_outlives_its_handle(directory: Path, backend: str) -> None:
    handle = aio.aio_handle(backend=backend)
    future = handle.submit_pwrite(tensor_of(pattern(NBYTES)), directory / "file")
    del handle
    gc.collect()
    assert future.result() == NBYTES
    assert (directory / "file").read_bytes() == pattern(NBYTES)


class OwnError(Exception):
    pass


def test_the_callers_exception_survives(directory: Path, backend: str) -> None:
    """What unwinds past a handle with pending operations is what the caller sees."""

    def fails() -> None:
        handle = aio.aio_handle(backend=backend)
        submit(handle, directory)
        raise OwnError

    with pytest.raises(OwnError) as caught:
        fails()
    assert caught.value.__context__ is None
    del caught
    gc.collect()
    check(directory)


def test_with_lets_the_callers_exception_out(directory: Path, backend: str) -> None:
    def fails() -> None:
        with aio.aio_handle(backend=backend) as handle:
            submit(handle, directory)
            raise OwnError

    with pytest.raises(OwnError):
        fails()
    check(directory)


def test_a_failed_operation_does_not_make_destruction_fail(directory: Path, backend: str) -> None:
    """The error has no one to go to: the other operations are drained all the same."""
    bad = refuses_text()
    handle = aio.aio_handle(backend=backend)
    handle.async_pwrite(tensor_of(TEXT), bad)
    submit(handle, directory)
    failing = handle.submit_pwrite(tensor_of(TEXT), bad)
    del handle
    gc.collect()
    check(directory)
    assert isinstance(failing.exception(), aio.AioError)


@pytest.mark.parametrize(
    "use",
    [
        lambda handle, path: handle.sync_pread(torch.empty(3), path),
        lambda handle, path: handle.sync_pwrite(torch.empty(3), path),
        lambda handle, path: handle.async_pwrite(torch.empty(3), path),
        lambda handle, path: handle.submit_pwrite(torch.empty(3), path),
        lambda handle, path: handle.pwrite_many([(torch.empty(3), path)]),
        lambda handle, path: handle.submit_pwrite_many([(torch.empty(3), path)]),
        lambda handle, path: handle.fsync(path),
    ],
    ids=["sync_pread", "sync_pwrite", "async_pwrite", "submit", "many", "submit many", "fsync"],
)
def test_use_after_close_is_an_error(
    directory: Path, backend: str, make_handle: Any, use: Any
) -> None:
    handle = make_handle(backend)
    handle.close()
    with pytest.raises(RuntimeError, match="closed"):
        use(handle, directory / "file")
    assert list(directory.iterdir()) == []
