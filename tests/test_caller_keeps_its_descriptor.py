"""The caller's descriptor is never closed, and closing it early hits nobody (C-15)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from support.buffers import pattern, raw, tensor_of

NBYTES = 300_001


def test_it_stays_open(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    with (directory / "file").open("wb+") as file:
        for index in range(20):
            handle.async_pwrite(tensor_of(pattern(NBYTES, index)), file.fileno(), index * NBYTES)
        assert handle.wait() == 20
        assert handle.sync_pwrite(b"x", file.fileno(), 0) == 1
        assert handle.submit_pwrite(b"y", file.fileno(), 1).result() == 1
        os.fstat(file.fileno())
        file.seek(0)
        assert file.read(2) == b"xy"
        assert file.read(NBYTES - 2) == pattern(NBYTES, 0)[2:]


def test_its_position_and_flags_do_not_matter(
    directory: Path, backend: str, make_handle: Any
) -> None:
    """Not O_APPEND, which would move the write, nor O_DIRECT, nor the position."""
    handle = make_handle(backend)
    path = directory / "file"
    path.write_bytes(bytes(NBYTES))
    for flags in (os.O_APPEND, os.O_DIRECT, 0):
        descriptor = os.open(path, os.O_RDWR | flags)
        try:
            os.lseek(descriptor, 4096, os.SEEK_SET)
            assert handle.sync_pwrite(pattern(1001, flags), descriptor, 77) == 1
            back = torch.zeros(1001, dtype=torch.uint8)
            assert handle.sync_pread(back, descriptor, 77) == 1
            assert raw(back) == pattern(1001, flags)
            assert os.lseek(descriptor, 0, os.SEEK_CUR) == 4096
        finally:
            os.close(descriptor)
        expected = bytes(77) + pattern(1001, flags) + bytes(NBYTES - 1078)
        assert path.read_bytes() == expected


def test_the_number_is_recycled_in_flight(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    for index in range(30):
        first = directory / f"first{index}"
        second = directory / f"second{index}"
        descriptor = os.open(first, os.O_RDWR | os.O_CREAT)
        handle.async_pwrite(tensor_of(pattern(NBYTES, index)), descriptor)
        handle.async_pwrite(tensor_of(pattern(NBYTES, index + 1)), descriptor, NBYTES)
        os.close(descriptor)
        other = os.open(second, os.O_RDWR | os.O_CREAT)
        try:
            assert os.write(other, b"mine") == 4
            assert handle.wait() == 2
            assert os.write(other, b" still") == 6
        finally:
            os.close(other)
        assert first.read_bytes() == pattern(NBYTES, index) + pattern(NBYTES, index + 1)
        assert second.read_bytes() == b"mine still"


def test_a_file_without_a_name(directory: Path, backend: str, make_handle: Any) -> None:
    """Only the descriptor leads to a file that was deleted."""
    handle = make_handle(backend)
    path = directory / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        path.unlink()
        assert handle.sync_pwrite(tensor_of(pattern(NBYTES)), descriptor) == 1
        back = torch.zeros(NBYTES, dtype=torch.uint8)
        assert handle.sync_pread(back, descriptor) == 1
        assert raw(back) == pattern(NBYTES)
        assert os.pread(descriptor, NBYTES + 1, 0) == pattern(NBYTES)
    finally:
        os.close(descriptor)
    assert list(directory.iterdir()) == []
