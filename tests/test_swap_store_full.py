"""A full drive is ENOSPC at put, with sizes; the source and the old content are intact (G-02)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aio.swap import SwapFullError, SwapStore
from support.buffers import pattern, raw, tensor_of
from support.files import fill_up
from support.mounts import ext4_image, small_tmpfs

MIB = 1 << 20
ROOM = 24 * MIB


@pytest.fixture(params=["tmpfs", "ext4"])
def drive(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    made = small_tmpfs if request.param == "tmpfs" else ext4_image
    with made(tmp_path / "drive", ROOM) as path:
        yield path


@pytest.mark.parametrize("segment_bytes", [2 * MIB, 1 << 30])
def test_put_on_a_full_drive(drive: Path, make_handle: Any, segment_bytes: int) -> None:
    handle = make_handle()
    old = pattern(5 * MIB + 7)
    with SwapStore(drive, handle, segment_bytes=segment_bytes) as store:
        store.put("states", [tensor_of(old)]).result()
        before = store.stats()
        source = tensor_of(pattern(ROOM, 1))
        for _ in range(3):
            with pytest.raises(SwapFullError) as caught:
                store.put("states", [source])
            error = caught.value
            assert isinstance(error, OSError)
            assert error.errno == errno.ENOSPC
            assert error.needed == ROOM
            (directory,) = error.available
            assert directory.startswith(str(drive))
            assert 0 < error.available[directory] < ROOM
            assert str(ROOM) in str(error)
            assert directory in str(error)
        assert raw(source) == pattern(ROOM, 1)
        assert raw(store.get("states").result()[0]) == old
        assert store.names() == ["states"]
        assert store.stats()["allocated"] == before["allocated"]


def put_if_room(store: SwapStore, name: str, data: bytes) -> bool:
    try:
        store.put(name, [tensor_of(data)]).result()
    except SwapFullError:
        return False
    return True


def test_everything_that_is_free_can_be_used(drive: Path, make_handle: Any) -> None:
    """Also in pieces, and also the last of the file system; deleting makes room again."""
    with SwapStore(drive, make_handle(), segment_bytes=4 * MIB) as store:
        count = 0
        while put_if_room(store, str(count), pattern(MIB, count)):
            count += 1
        assert count > 15
        for index in range(0, count, 2):
            store.delete(str(index))
        free = count // 2 * MIB
        store.put("scattered", [tensor_of(pattern(free, 99))]).result()
        assert raw(store.get("scattered").result()[0]) == pattern(free, 99)
        for index in range(1, count, 2):
            assert raw(store.get(str(index)).result()[0]) == pattern(MIB, index)


def test_in_place_needs_no_room(drive: Path, make_handle: Any) -> None:
    with SwapStore(drive, make_handle()) as store:
        nbytes = 14 * MIB
        store.put("big", [tensor_of(pattern(nbytes))]).result()
        with pytest.raises(SwapFullError):
            store.put("big", [tensor_of(pattern(nbytes, 1))])
        store.put("big", [tensor_of(pattern(nbytes, 2))], in_place=True).result()
        assert raw(store.get("big").result()[0]) == pattern(nbytes, 2)


def test_another_directory_takes_the_rest(drive: Path, disk: Path, make_handle: Any) -> None:
    with SwapStore([drive, disk], make_handle(), bandwidths=[3, 1]) as store:
        data = pattern(40 * MIB)
        store.put("big", [tensor_of(data)]).result()
        assert raw(store.get("big").result()[0]) == data


def test_a_drive_with_no_room_at_all(drive: Path, make_handle: Any) -> None:
    with SwapStore(drive, make_handle()) as store:
        fill_up(drive / "rest")
        with pytest.raises(SwapFullError):
            store.put("one", [torch.ones(1)])
        store.put("nothing", [torch.empty(0)]).result()
        assert store.get("nothing").result()[0].shape == (0,)
