"""No byte before or after the tensor is read or written (B-01)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.buffers import Guarded, locked, pattern, raw
from support.files import contents

NBYTES = st.one_of(
    st.integers(1, 70_000),
    st.sampled_from([1, 511, 512, 4095, 4096, 4097, 8192, 65536, 65537]),
)
OFFSETS = st.sampled_from([0, 1, 512, 4095, 4096])


@pytest.mark.parametrize("at_end", [True, False], ids=["page after", "page before"])
@given(nbytes=NBYTES, offset=OFFSETS)
def test_between_forbidden_pages(
    directory: Path, handle: Any, at_end: bool, nbytes: int, offset: int
) -> None:
    """One byte too many, in a copy or by the kernel, ends in SIGSEGV or EFAULT."""
    path = directory / "file"
    path.unlink(missing_ok=True)
    data = pattern(nbytes)
    memory = Guarded(nbytes, at_end)
    memory.array[:] = bytearray(data)
    assert handle.sync_pwrite(memory.tensor, str(path), offset) == 1
    assert contents(path) == bytes(offset) + data
    memory.array[:] = 0
    assert handle.sync_pread(memory.tensor, str(path), offset) == 1
    assert memory.array.tobytes() == data


@pytest.mark.parametrize("pinned", [False, True], ids=["plain", "locked"])
@given(nbytes=NBYTES, offset=OFFSETS, start=st.integers(0, 9000))
def test_reads_keep_the_bytes_around(
    directory: Path, handle: Any, pinned: bool, nbytes: int, offset: int, start: int
) -> None:
    path = directory / "file"
    data = pattern(nbytes + 20_000)
    path.write_bytes(data)
    total = start + nbytes + 9000
    around = locked(handle, total) if pinned else torch.empty(total, dtype=torch.uint8)
    around.fill_(0x5A)
    assert handle.sync_pread(around[start : start + nbytes], str(path), offset) == 1
    want = bytes([0x5A]) * start + data[offset : offset + nbytes] + bytes([0x5A]) * 9000
    assert raw(around) == want
