"""Pinned regions as fixed buffers: any offset, any batch, beyond 1 GiB (E-21, E-22, E-23)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import _deepnvme
import aio
import support.torch_threads  # noqa: F401
from support.buffers import fill, locked, pattern, raw
from support.child import child_answer, with_low_memlock
from support.counters import counters

GIB = 1 << 30
MIB = 1 << 20


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_offsets_in_the_buffer(directory: Path, backend: str, make_handle: Any, batch: int) -> None:
    """Batched reads, the first to a given offset of the region (4096 failed on some kernels)."""
    for length in (4096, 8192):
        handle = make_handle(backend, block_size=length)
        for inside in (0, 512, 4096, 8192):
            check_batch(directory, handle, inside, batch, length)


def check_batch(directory: Path, handle: Any, inside: int, batch: int, length: int) -> None:
    data = pattern(batch * length)
    path = directory / "file"
    path.write_bytes(data)
    region = locked(handle, 128 * 1024).fill_(0x5A)
    items = [(region[inside + k * length :][:length], path, k * length) for k in range(batch)]
    assert handle.pread_many(items) == batch
    around = raw(region)
    assert around[inside : inside + len(data)] == data
    assert around[:inside] == b"\x5a" * inside
    assert around[inside + len(data) :] == b"\x5a" * (len(around) - inside - len(data))
    assert handle.pwrite_many([(view, directory / "copy", start) for view, _, start in items])
    assert (directory / "copy").read_bytes() == data


@given(
    start=st.one_of(st.integers(-70_000, 70_000), st.sampled_from([-8192, -4096, -512, 0, 4096])),
    length=st.one_of(st.integers(1, 200_000), st.sampled_from([4096, 65536, 131072])),
    offset=st.sampled_from([0, 512, 4096, 77]),
)
def test_around_one_gib(
    disk: Path, backend: str, giant: torch.Tensor, start: int, length: int, offset: int
) -> None:
    """A region is registered in pieces of at most 1 GiB: transfers across the seam are whole."""
    path = disk / "file"
    data = pattern(length, seed=length)
    path.write_bytes(bytes(offset) + data)
    begin = min(GIB + start, giant.nbytes - length)
    view = giant[begin : begin + length]
    lead, tail = giant[begin - 64 : begin], giant[begin + length : begin + length + 64]
    for guard in (lead, tail):
        guard.fill_(0x5A)
    view.zero_()
    with aio.aio_handle(backend=backend, block_size=65536) as handle:
        assert handle.sync_pread(view, path, offset) == 1
        assert raw(view) == data
        assert raw(lead) == b"\x5a" * 64
        assert raw(tail) == b"\x5a" * min(64, giant.nbytes - begin - length)
        (disk / "copy").unlink(missing_ok=True)
        assert handle.sync_pwrite(view, disk / "copy", offset) == 1
    assert (disk / "copy").read_bytes() == bytes(offset) + data


def test_a_transfer_of_more_than_a_piece(tmpfs: Path, backend: str, giant: torch.Tensor) -> None:
    """The whole region, read from a sparse file whose few written bytes tell where they came."""
    path = tmpfs / "file"
    marks = [0, 4096, MIB - 8, GIB - 4, GIB, giant.nbytes - 8]
    with path.open("wb") as file:
        file.truncate(giant.nbytes)
        for mark in marks:
            file.seek(mark)
            file.write(mark.to_bytes(8, "little"))
    giant[:: 4096 * 16].fill_(0xEE)
    with aio.aio_handle(backend=backend, block_size=16 * MIB) as handle:
        assert handle.sync_pread(giant, path) == 1
    with path.open("rb") as file:
        for mark in marks:
            file.seek(mark)
            assert raw(giant[mark : mark + 8]) == file.read(8)
    # Each mark begins with a zero byte where it is a multiple of 64 KiB; all else is a hole.
    assert not bool(giant[:: 4096 * 16].any())


@pytest.fixture(scope="module")
def giant() -> Any:
    """A pinned region of 1 GiB and a page, shared by this file: it takes a while to lock."""
    tensor = locked(aio.pin_handle(), GIB + 4096)
    yield tensor
    del tensor
    _deepnvme.pin.empty_cache()


def test_handles_come_and_go(directory: Path, backend: str) -> None:
    """Each ring registers and unregisters the same region; its pages are charged once at most."""
    pins = aio.pin_handle()
    region = locked(pins, 6 * MIB)
    fill(region, pattern(6 * MIB))
    path = directory / "file"
    path.write_bytes(bytes(6 * MIB))
    with aio.aio_handle(backend=backend) as handle:
        handle.sync_pwrite(region[:4096], path)
    with counters():
        # A context of libaio takes milliseconds to go, a ring does not.
        for index in range(200 if backend == "io_uring" else 20):
            handle = aio.aio_handle(backend=backend)
            handle.sync_pwrite(region[index * 4096 :][:8192], path, index * 4096)
            written = (index + 2) * 4096
            if index % 2:
                handle.close()
            del handle
    assert path.read_bytes()[:written] == pattern(6 * MIB)[:written]


UNDER_A_LIMIT = """
import json, sys
import torch, aio
from support.buffers import fill, locked, pattern, raw
backend, folder = sys.argv[1:]
region = locked(aio.pin_handle(), 6 << 20)
data = pattern(6 << 20)
fill(region, data)
good = True
for _ in range(10):
    handle = aio.aio_handle(backend=backend)
    handle.sync_pwrite(region, f"{folder}/file")
    region.zero_()
    handle.sync_pread(region, f"{folder}/file")
    good &= raw(region) == data
    del handle
print(json.dumps(good))
"""


def test_a_limit_that_leaves_no_room_to_register(tmpfs: Path) -> None:
    """6 of 8 MiB are locked: a ring cannot charge them again, and does without."""
    if "io_uring" not in aio.available_backends():
        pytest.skip("fixed buffers need io_uring, which cannot run here")
    assert child_answer(UNDER_A_LIMIT, "io_uring", tmpfs, wrapper=with_low_memlock(8 * MIB))
