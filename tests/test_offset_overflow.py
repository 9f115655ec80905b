"""Offsets that no file has are refused before any system call, without wrapping around (A-15)."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from support.buffers import pattern, tensor_of
from support.files import piece

LAST = 2**63 - 1
BAD = [-1, -4096, -(2**63), LAST, LAST - 4094, 2**63, 2**64, 2**64 - 1, 2**100]


def test_refused(directory: Path, handle: Any) -> None:
    path = directory / "missing"
    name = str(path)
    tensor = tensor_of(pattern(4096))
    ways = [
        lambda offset: handle.read(tensor, name, False, offset),
        lambda offset: handle.write(tensor, name, False, offset),
        lambda offset: handle.pread(tensor, name, False, False, offset),
        lambda offset: handle.pwrite(tensor, name, False, True, offset),
        lambda offset: handle.sync_pread(tensor, name, offset),
        lambda offset: handle.sync_pwrite(tensor, name, offset),
        lambda offset: handle.async_pread(tensor, name, offset),
        lambda offset: handle.async_pwrite(tensor, name, offset),
        lambda offset: handle.submit_pread(tensor, name, offset),
        lambda offset: handle.submit_pwrite(tensor, name, offset),
        lambda offset: handle.pread_many([(tensor, name, offset)]),
        lambda offset: handle.pwrite_many([(tensor, name, offset)]),
    ]
    for offset, way in itertools.product(BAD, ways):
        with pytest.raises(ValueError, match=r"offset"):
            way(offset)
    assert not path.exists()
    assert handle.wait() == 0
    assert handle.stats()["failed"] == 0


def test_one_bad_offset_among_many_starts_nothing(
    directory: Path, backend: str, make_handle: Any
) -> None:
    handle = make_handle(backend)
    good, bad = directory / "good", directory / "bad"
    tensor = tensor_of(pattern(4096))
    with pytest.raises(ValueError, match=r"offset"):
        handle.pwrite_many([(tensor, str(good), 0), (tensor, str(bad), -1)])
    assert not good.exists()
    assert not bad.exists()
    assert handle.wait() == 0


def test_the_last_offset_there_is(directory: Path, backend: str, make_handle: Any) -> None:
    """The byte before 2**63 - 1 may be written where the file system can; others say EFBIG."""
    handle = make_handle(backend)
    path = directory / "file"
    one = torch.ones(1, dtype=torch.uint8)
    plain = directory / "plain"
    refused = None
    with open(plain, "wb") as file:
        try:
            os.pwrite(file.fileno(), b"\x01", LAST - 1)
        except OSError as error:
            refused = error.errno
    if refused is None:
        assert handle.sync_pwrite(one, str(path), LAST - 1) == 1
        assert path.stat().st_size == LAST
    else:
        with pytest.raises(aio.AioError) as caught:
            handle.sync_pwrite(one, str(path), LAST - 1)
        assert caught.value.errno == refused
    assert handle.sync_pwrite(one, str(path), 0) == 1
    assert piece(path, 0, 1) == b"\x01"
