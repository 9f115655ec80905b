"""A byte that a drive has changed is an error that names the file and the place (group G)."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aio.swap import ChecksumError, SwapStore
from aio.swap.checksum import Checksums
from support.buffers import pattern, raw, tensor_of

PACKAGES = {"xxh3": "xxhash", "crc32c": "crc32c"}
LARGE, SMALL = 20_000_000, 1000  # two parts with a checksum each, and a packed chunk


@pytest.fixture(params=PACKAGES)
def store(request: Any, disk: Path, make_handle: Any) -> Iterator[SwapStore]:
    pytest.importorskip(PACKAGES[request.param], reason=f"{PACKAGES[request.param]} is missing")
    with SwapStore(disk, make_handle(), checksum=request.param) as made:
        group = [tensor_of(pattern(LARGE, 1)), tensor_of(pattern(SMALL, 2))]
        made.put("x", group).result()
        yield made


def flip(store: SwapStore, data: bytes) -> tuple[str, int]:
    """Change the byte after ``data``, wherever that is; returns the file and the byte's offset."""
    path = Path(store.stats()["directories"][0]["path"], "segment-000000")
    at = path.read_bytes().index(data) + len(data)
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    return str(path), at


@pytest.mark.parametrize("where", [(LARGE, 1, 100), (LARGE, 1, 17_000_000), (SMALL, 2, 500)])
def test_a_flipped_bit(store: SwapStore, where: tuple[int, int, int]) -> None:
    nbytes, seed, at = where
    path, offset = flip(store, pattern(nbytes, seed)[at - 64 : at])
    for out in (None, [torch.empty(n, dtype=torch.uint8) for n in (LARGE, SMALL)]):
        with pytest.raises(ChecksumError, match=r"(crc32c|xxh3) of \d+ bytes") as caught:
            store.get("x", out).result()
        error = caught.value
        assert (error.errno, error.filename) == (errno.EBADMSG, path)
        assert error.offset <= offset < error.offset + error.nbytes
        assert error.expected != error.actual
        assert hex(error.expected) in str(error)
    store.put("x", [tensor_of(pattern(LARGE, 3))], in_place=True).result()  # goes on
    assert raw(store.get("x").result()[0]) == pattern(LARGE, 3)


def test_in_place_replaces_checksums(store: SwapStore) -> None:
    group = [tensor_of(pattern(LARGE, 4)), tensor_of(pattern(SMALL, 5))]
    store.put("x", group, in_place=True).result()
    assert [raw(tensor) for tensor in store.get("x").result()] == [raw(t) for t in group]


def test_known_values() -> None:
    """Of RFC 3720, and of the reference implementation of XXH3."""
    zeros = torch.zeros(32, dtype=torch.uint8)
    pytest.importorskip("crc32c", reason="crc32c is not installed")
    assert Checksums("crc32c").of(zeros) == [0x8A9136AA]
    pytest.importorskip("xxhash", reason="xxhash is not installed")
    assert Checksums("xxh3").of(zeros[:0]) == []


def test_a_missing_package(tmp_path: Path, monkeypatch: Any) -> None:
    for kind, package in PACKAGES.items():
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError, match=f"pip install {package}"):
            SwapStore(tmp_path, checksum=kind)
    with pytest.raises(ValueError, match="'md5'"):
        SwapStore(tmp_path, checksum="md5")
    assert list(tmp_path.iterdir()) == []
