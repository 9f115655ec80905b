"""A closed, read-only, write-only, directory or pipe descriptor fails alone (C-13)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from support.buffers import pattern, raw, tensor_of

NBYTES = 50_001


@contextmanager
def closed(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory / "scrap", os.O_RDWR | os.O_CREAT)
    os.close(descriptor)
    yield descriptor


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def read_only(directory: Path) -> Iterator[int]:
    (directory / "scrap").write_bytes(b"kept")
    with opened(directory / "scrap", os.O_RDONLY) as descriptor:
        yield descriptor


@contextmanager
def write_only(directory: Path) -> Iterator[int]:
    (directory / "scrap").write_bytes(bytes(NBYTES))
    with opened(directory / "scrap", os.O_WRONLY) as descriptor:
        yield descriptor


@contextmanager
def folder(directory: Path) -> Iterator[int]:
    with opened(directory, os.O_RDONLY) as descriptor:
        yield descriptor


@contextmanager
def pipe(directory: Path) -> Iterator[int]:
    ends = os.pipe()
    try:
        yield ends[0]
    finally:
        os.close(ends[0])
        os.close(ends[1])


Case = Callable[[Path], Any]

CASES = [
    ("write", closed, {errno.EBADF}),
    ("read", closed, {errno.EBADF}),
    ("write", read_only, {errno.EBADF}),
    ("read", write_only, {errno.EBADF}),
    ("read", folder, {errno.EISDIR}),
    ("write", folder, {errno.EISDIR, errno.EBADF}),
    ("read", pipe, {errno.ESPIPE}),
    ("write", pipe, {errno.ESPIPE, errno.EBADF}),
]


@pytest.mark.parametrize(
    ("kind", "case", "errors"),
    CASES,
    ids=[f"{kind} {case.__name__}" for kind, case, _ in CASES],
)
def test_it_fails_alone(
    directory: Path,
    backend: str,
    make_handle: Any,
    kind: str,
    case: Case,
    errors: set[int],
) -> None:
    handle = make_handle(backend)
    for index in range(3):
        handle.async_pwrite(tensor_of(pattern(NBYTES, index)), directory / f"{index}")
    with case(directory) as descriptor:
        scrap = directory / "scrap"
        before = scrap.read_bytes() if scrap.exists() else None
        call = handle.async_pread if kind == "read" else handle.async_pwrite
        buffer = torch.full((1000,), 0x5A, dtype=torch.uint8)
        with pytest.raises(aio.AioError) as caught:
            _submit_and_wait(handle, call, buffer, descriptor)
        assert caught.value.errno in errors
        assert raw(buffer) == b"\x5a" * 1000
        assert (scrap.read_bytes() if scrap.exists() else None) == before
    handle.wait()
    for index in range(3):
        assert (directory / f"{index}").read_bytes() == pattern(NBYTES, index)
    again = torch.zeros(NBYTES, dtype=torch.uint8)
    assert handle.sync_pread(again, directory / "1") == 1
    assert raw(again) == pattern(NBYTES, 1)


def _submit_and_wait(handle: Any, call: Any, buffer: torch.Tensor, descriptor: int) -> None:
    call(buffer, descriptor)
    handle.wait()


@pytest.mark.parametrize("descriptor", [-1, -100, 2**31 - 1, 2**31, 2**64])
def test_numbers_that_are_no_descriptor(backend: str, make_handle: Any, descriptor: int) -> None:
    handle = make_handle(backend)
    with pytest.raises((aio.AioError, ValueError, OverflowError)) as caught:
        handle.async_pread(torch.ones(1), descriptor)
    if isinstance(caught.value, aio.AioError):
        assert caught.value.errno == errno.EBADF
    assert handle.wait() == 0
