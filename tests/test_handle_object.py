"""close(), `with`, repr() and fsync() of a handle."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
import support.torch_threads  # noqa: F401
from support.buffers import pattern, tensor_of
from support.child import child_answer, with_strace
from support.counters import counters


def test_with_gives_the_handle_and_closes_it(directory: Path, backend: str) -> None:
    with counters():
        made = aio.aio_handle(backend=backend)
        with made as handle:
            assert handle is made
            assert handle.sync_pwrite(b"abc", directory / "file") == 1
        with pytest.raises(RuntimeError, match="closed"):
            handle.sync_pwrite(b"xyz", directory / "file")
        handle.close()
    assert (directory / "file").read_bytes() == b"abc"


def test_what_still_works_after_close(directory: Path, backend: str) -> None:
    with aio.aio_handle(backend=backend, block_size=777) as handle:
        handle.sync_pwrite(tensor_of(pattern(5000)), directory / "file")
    assert handle.get_block_size() == 777
    assert handle.backend == backend
    stats: Any = handle.stats()
    assert sum(stats["bytes"]["write"].values()) == 5000
    assert "closed" in repr(handle)


def test_an_error_reaches_wait_after_close(directory: Path, backend: str) -> None:
    """close() drains; the count of what it drained is still there to be asked for."""
    handle = aio.aio_handle(backend=backend)
    for index in range(5):
        handle.async_pwrite(tensor_of(pattern(5000)), directory / f"{index}")
    handle.close()
    for index in range(5):
        assert (directory / f"{index}").read_bytes() == pattern(5000)


def test_repr(backend: str, make_handle: Any) -> None:
    handle = make_handle(
        backend, block_size=12_345, queue_depth=17, intra_op_parallelism=2, single_submit=True
    )
    said = repr(handle)
    for word in ("aio_handle", backend, "12345", "17", "intra_op_parallelism=2"):
        assert word in said
    assert "\n" not in said


def test_repr_of_others(directory: Path, backend: str, make_handle: Any) -> None:
    future = make_handle(backend).submit_pwrite(torch.ones(3), directory / "file")
    future.result()
    assert "IOFuture" in repr(future)
    assert "done" in repr(future)
    assert "pin_handle" in repr(aio.pin_handle())


def test_the_engine_is_one_of_the_machine(make_handle: Any) -> None:
    assert make_handle().backend in aio.available_backends()
    assert make_handle("auto").backend == make_handle().backend


def test_fsync_of_a_file(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    handle.sync_pwrite(tensor_of(pattern(5000)), path)
    assert handle.fsync(path) is None
    assert handle.fsync(str(path)) is None
    with path.open("rb") as file:
        assert handle.fsync(file.fileno()) is None
        os.fstat(file.fileno())


def test_fsync_of_no_file(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    with pytest.raises(aio.AioError) as caught:
        handle.fsync(directory / "missing")
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(directory / "missing")
    assert list(directory.iterdir()) == []


FSYNC = """
import json, sys
import aio
handle = aio.aio_handle()
try:
    handle.fsync(sys.argv[1])
except aio.AioError as error:
    print(json.dumps([error.errno, error.filename]))
else:
    print(json.dumps("success"))
"""


def test_a_failed_fsync_is_an_error(disk: Path, tmp_path: Path) -> None:
    path = disk / "file"
    path.write_bytes(pattern(5000))
    tampered = with_strace(
        tmp_path / "trace", "trace=fsync,fdatasync", "inject=fsync,fdatasync:error=EIO", path=path
    )
    assert child_answer(FSYNC, path, wrapper=tampered) == [errno.EIO, str(path)]


def test_file_that_was_opened_for_several_requests_and_closed(directory: Path) -> None:
    (directory / "file").write_bytes(b"abc")
    with aio.aio_handle() as handle:
        file = handle._core.open(directory / "file", 0, 3, False)
        assert os.fstat(file.fileno()).st_size == 3
        file.close()
        for ask in (file.fileno, file.path):
            with pytest.raises(ValueError, match="closed"):
                ask()
