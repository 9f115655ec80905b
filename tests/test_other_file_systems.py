"""xfs, btrfs, FUSE, and no O_DIRECT at all: the same bytes, and honest statistics (F-01)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
from support.buffers import fill, locked, pattern, raw, tensor_of
from support.files import FileModel, drop_cache
from support.fuse import fuse_mount
from support.images import image_of
from support.layouts import OFFSETS, SIZES
from support.mounts import ramfs

KINDS = ("xfs", "btrfs", "ramfs", "fuse")
MIB = 1 << 20


@pytest.fixture(scope="module", params=KINDS)
def drive(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """A file system, and its type."""
    point = tmp_path_factory.mktemp(request.param) / "drive"
    with ExitStack() as undo:
        if request.param == "ramfs":
            path = undo.enter_context(ramfs(point))
        elif request.param == "fuse":
            path = undo.enter_context(fuse_mount(point)).path
        else:
            path = undo.enter_context(image_of(request.param, point))
        yield request.param, path


WRITES = st.lists(
    st.tuples(OFFSETS, SIZES.filter(bool), st.sampled_from(["plain", "locked", "odd", "strided"])),
    min_size=1,
    max_size=6,
)


def memory(handle: Any, kind: str, nbytes: int) -> torch.Tensor:
    if kind == "locked":
        return locked(handle, nbytes)
    if kind == "odd":
        return locked(handle, nbytes + 1)[1:]
    if kind == "strided":
        return torch.empty(nbytes, 3, dtype=torch.uint8)[:, 1]
    return torch.empty(nbytes, dtype=torch.uint8)


@given(writes=WRITES)
def test_against_the_model(
    drive: tuple[str, Path], handle: Any, writes: list[tuple[int, int, str]]
) -> None:
    path = drive[1] / "model"
    model = FileModel()
    path.unlink(missing_ok=True)
    for seed, (offset, nbytes, kind) in enumerate(writes):
        data = pattern(nbytes, seed)
        tensor = memory(handle, kind, nbytes)
        tensor.copy_(tensor_of(data))
        handle.async_pwrite(tensor, path, offset)
        assert handle.wait() == 1
        model.write(offset, data)
    assert path.read_bytes() == model.content()
    drop_cache(path)
    for offset, nbytes, kind in writes:
        tensor = memory(handle, kind, nbytes).fill_(0x5A)
        assert handle.submit_pread(tensor, path, offset).result(60) == nbytes
        assert raw(tensor) == model.read(offset, nbytes)


def takes_direct(directory: Path) -> bool:
    """Whether the file system opens with O_DIRECT, asked without the library."""
    try:
        os.close(os.open(directory / "probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_the_statistics_say_how(drive: tuple[str, Path], backend: str, make_handle: Any) -> None:
    """A page-locked megabyte goes past the page cache where that can be, and is counted there."""
    path = drive[1] / "megabyte"
    direct = takes_direct(drive[1])
    handle = make_handle(backend, block_size=65536)
    tensor = locked(handle, MIB)
    fill(tensor, pattern(MIB))
    assert handle.sync_pwrite(tensor, path) == 1
    drop_cache(path)
    tensor.zero_()
    assert handle.sync_pread(tensor, path) == 1
    assert raw(tensor) == pattern(MIB)
    stats = handle.stats()
    for way in ("read", "write"):
        moved = stats["bytes"][way]
        past_the_cache = moved["direct"] + moved["fixed"]
        assert (past_the_cache, moved["buffered"]) == ((MIB, 0) if direct else (0, MIB))
    memory_file_system = drive[0] == "ramfs"
    assert (stats["direct_refused"] > 0) == (not direct and memory_file_system)


def test_many_files_by_descriptor(drive: tuple[str, Path], backend: str) -> None:
    descriptors = []
    try:
        for index in range(30):
            flags = os.O_CREAT | os.O_RDWR
            descriptors.append(os.open(drive[1] / f"many{index}", flags, 0o600))
        with aio.aio_handle(backend=backend, intra_op_parallelism=2) as handle:
            data = [pattern(10_000 * index + 1, index) for index in range(30)]
            assert handle.pwrite_many(zip(data, descriptors, strict=True)) == 30
            back = [bytearray(len(one)) for one in data]
            assert handle.pread_many(zip(back, descriptors, strict=True)) == 30
            assert back == data
            handle.fsync(descriptors[0])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
