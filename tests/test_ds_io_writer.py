"""torch_fastio's file has exactly the bytes that were written to it, in any pieces, or an error."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
from aio.ds_io.writer import HandleWriter
from support.buffers import pattern
from support.files import contents
from support.mounts import small_tmpfs


@given(
    pieces=st.lists(st.integers(0, 9000), max_size=8),
    flushes=st.sets(st.integers(0, 7)),
    buffer=st.integers(2, 6000),
)
def test_any_pieces(
    handle: Any, tmp_path: Path, pieces: list[int], flushes: set[int], buffer: int
) -> None:
    path, model = tmp_path / "written", b""
    path.write_bytes(b"something longer that was there before" * 1000)
    with HandleWriter(path, handle, torch.empty(buffer, dtype=torch.uint8)) as file:
        for index, nbytes in enumerate(pieces):
            piece = pattern(nbytes, index)
            assert file.write(memoryview(piece)) == nbytes
            model += piece
            if index in flushes:
                file.flush()
                assert contents(path) == model
    assert contents(path) == model


def test_it_is_a_file_that_only_writes(handle: Any, tmp_path: Path) -> None:
    with HandleWriter(tmp_path / "file", handle, torch.empty(64, dtype=torch.uint8)) as file:
        assert isinstance(file, io.RawIOBase)
        assert file.writable()
        assert not file.readable()
        file.write(torch.arange(3, dtype=torch.int32).numpy())  # any buffer, by its bytes
    assert contents(tmp_path / "file") == bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])
    with pytest.raises(ValueError, match="closed"):
        file.flush()


def test_a_buffer_that_is_too_small(handle: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 bytes, but must have at least 2"):
        HandleWriter(tmp_path / "file", handle, torch.empty(1, dtype=torch.uint8))
    assert not (tmp_path / "file").exists()


def test_a_full_drive_is_an_error(handle: Any, tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "drive", 1 << 20) as drive:
        file = HandleWriter(drive / "file", handle, torch.empty(1 << 19, dtype=torch.uint8))
        with pytest.raises(aio.AioError) as failed:
            file.write(bytes(4 << 20))
        assert failed.value.errno == errno.ENOSPC
