"""A few large files, no page cache, and transfers that are as many as there is data (group G)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from aio.swap import SwapStore
from support.files import direct_alignment
from support.mounts import ext4_image

MIB = 1 << 20


def files_of(store: SwapStore) -> list[Path]:
    (directory,) = store.stats()["directories"]
    return sorted(Path(directory["path"]).glob("segment-*"))


def test_files_are_allocated_and_used_again(disk: Path, make_handle: Any) -> None:
    with SwapStore(disk, make_handle(), segment_bytes=2 * MIB) as store:
        for number in range(30):
            group = {f"{number}.{index}": torch.ones(1000 + number) for index in range(50)}
            store.put(f"group {number % 4}", group).result()
        (file,) = files_of(store)
        assert file.stat().st_size == 2 * MIB
        assert file.stat().st_blocks * 512 >= 2 * MIB
        store.put("large", [torch.ones(5 * MIB // 4)]).result()  # larger than a file
        assert {file.stat().st_size for file in files_of(store)} == {2 * MIB}
        assert len(files_of(store)) == 4
        assert bool((store.get("large").result()[0] == 1).all())


@pytest.mark.parametrize("sizes", [[70_001], [4001] * 500, [65_537, 100, 5]], ids=str)
def test_nothing_goes_through_the_page_cache(
    disk: Path, make_handle: Any, sizes: list[int]
) -> None:
    """Also the ends of tensors, and small ones."""
    (disk / "file").touch()
    direct_alignment(disk / "file")
    handle = make_handle()
    with SwapStore(disk, handle) as store:
        store.put("x", [torch.ones(n, dtype=torch.uint8) for n in sizes]).result()
        got = store.get("x").result()
        assert all(bool((tensor == 1).all()) for tensor in got)
        stats = handle.stats()
        for way in ("read", "write"):
            assert stats["bytes"][way]["buffered"] == 0
            assert sum(stats["bytes"][way].values()) >= sum(sizes)
            assert stats["requests"][way] <= 2  # small ones travel together


def test_4096_byte_sectors(tmp_path: Path, make_handle: Any) -> None:
    """FX3: what the drive asks for is what extents are aligned to."""
    with ext4_image(tmp_path / "drive", 24 * MIB, sector_size=4096) as drive:
        handle = make_handle()
        with SwapStore(drive, handle, segment_bytes=MIB) as store:
            tensors = [torch.arange(n) for n in (100_000, 3, 77_777)]
            store.put("x", tensors).result()
            for got, put in zip(store.get("x").result(), tensors, strict=True):
                assert torch.equal(got, put)
        assert handle.stats()["bytes"]["write"]["buffered"] == 0


def test_modes(disk: Path, make_handle: Any) -> None:
    """States are nobody else's to read."""
    with SwapStore(disk, make_handle()) as store:
        store.put("x", [torch.ones(1)]).result()
        (namespace,) = disk.iterdir()
        assert namespace.stat().st_mode & 0o077 == 0
        for name in os.listdir(namespace):
            assert (namespace / name).stat().st_mode & 0o077 == 0
