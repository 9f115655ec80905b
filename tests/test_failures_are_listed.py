"""wait() raises once for all failures, with errno, path and sizes; the handle goes on (C-03)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from support.buffers import pattern, raw, tensor_of
from support.in_flight import (
    REFUSES_TEXT_ERRNO,
    TEXT,
    refuses_text,
    shorter_than_it_says,
)

NBYTES = 100_003


def test_three_fail_and_three_are_good(directory: Path, backend: str, make_handle: Any) -> None:
    bad = refuses_text()
    handle = make_handle(backend)
    for index in range(3):
        handle.async_pwrite(tensor_of(pattern(NBYTES, index)), directory / f"{index}")
        handle.async_pwrite(tensor_of(TEXT), bad)
    with pytest.raises(aio.AioError) as caught:
        handle.wait()
    error = caught.value
    assert error.failures[0] is error
    assert len(error.failures) == 3
    for failure in error.failures:
        assert isinstance(failure, aio.AioError)
        assert failure.errno == REFUSES_TEXT_ERRNO
        assert failure.filename == str(bad)
        assert (failure.offset, failure.nbytes, failure.nbytes_done) == (0, len(TEXT), 0)
        assert str(bad) in str(failure)
    for index in range(3):
        assert (directory / f"{index}").read_bytes() == pattern(NBYTES, index)


def test_no_failure_leaks_into_the_next_wait(
    directory: Path, backend: str, make_handle: Any
) -> None:
    bad = refuses_text()
    handle = make_handle(backend)
    for _ in range(5):
        handle.async_pwrite(tensor_of(TEXT), bad)
        with pytest.raises(aio.AioError) as caught:
            handle.wait()
        assert len(caught.value.failures) == 1
        assert handle.wait() == 0
        handle.async_pwrite(tensor_of(pattern(NBYTES)), directory / "good")
        assert handle.wait() == 1
    assert handle.stats()["failed"] == 5


def test_the_end_comes_in_flight(directory: Path, backend: str, make_handle: Any) -> None:
    """The file was long enough when it was asked: what arrived is counted, the rest untouched."""
    path, contents, says = shorter_than_it_says()
    handle = make_handle(backend)
    (directory / "good").write_bytes(pattern(NBYTES))
    good = torch.zeros(NBYTES, dtype=torch.uint8)
    bad = torch.full((says,), 0x5A, dtype=torch.uint8)
    handle.async_pread(bad, path)
    handle.async_pread(good, directory / "good")
    with pytest.raises(aio.AioError) as caught:
        handle.wait()
    error = caught.value
    assert error.errno == errno.ENODATA
    assert error.filename == str(path)
    assert error.offset == 0
    assert error.nbytes == says
    assert error.nbytes_done <= len(contents)
    done = error.nbytes_done
    assert raw(bad)[:done] == contents[:done]
    assert raw(bad)[len(contents) :] == b"\x5a" * (says - len(contents))
    assert raw(good) == pattern(NBYTES)
    assert handle.wait() == 0


def test_a_sync_failure_leaves_pending_ones_alone(
    directory: Path, backend: str, make_handle: Any
) -> None:
    bad = refuses_text()
    handle = make_handle(backend)
    handle.async_pwrite(tensor_of(pattern(NBYTES)), directory / "good")
    with pytest.raises(aio.AioError) as caught:
        handle.sync_pwrite(tensor_of(TEXT), bad)
    assert caught.value.errno == REFUSES_TEXT_ERRNO
    assert len(caught.value.failures) == 1
    assert handle.wait() == 1
    assert (directory / "good").read_bytes() == pattern(NBYTES)


def test_an_error_belongs_to_its_future(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    bad = handle.submit_pwrite(tensor_of(TEXT), refuses_text())
    good = handle.submit_pwrite(tensor_of(pattern(NBYTES)), directory / "good")
    assert good.result() == NBYTES
    error = bad.exception()
    assert isinstance(error, aio.AioError)
    assert error.errno == REFUSES_TEXT_ERRNO
    with pytest.raises(aio.AioError) as caught:
        bad.result()
    assert caught.value.errno == REFUSES_TEXT_ERRNO
    assert handle.wait() == 0


def test_a_missing_file_is_said_at_once(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = directory / "missing" / "file"
    for call in (handle.async_pread, handle.sync_pread, handle.async_pwrite, handle.submit_pread):
        with pytest.raises(aio.AioError) as caught:
            call(torch.ones(1), path)
        assert isinstance(caught.value, OSError)
        assert caught.value.errno == errno.ENOENT
        assert caught.value.filename == str(path)
        assert caught.value.strerror
    assert handle.wait() == 0
