"""stats(): every byte moved is counted once, under the path that carried it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
from support.buffers import locked, pattern, shifted, tensor_of
from support.in_flight import TEXT, refuses_text, sparse
from support.layouts import OFFSETS, SIZES
from support.mounts import ramfs

PATHS = ("direct", "fixed", "staged", "buffered")
LATENCIES = ("p50", "p90", "p99", "p999", "max", "mean", "count")
NBYTES = 1 << 20


def moved(stats: dict[str, Any], kind: str) -> int:
    return sum(stats["bytes"][kind].values())


def test_shape(backend: str, make_handle: Any) -> None:
    stats = make_handle(backend).stats()
    assert stats["backend"] == backend
    assert stats["requests"] == {"read": 0, "write": 0}
    for counts in (stats["bytes"], stats["transfers"]):
        assert counts == {kind: dict.fromkeys(PATHS, 0) for kind in ("read", "write")}
    assert set(stats["latency"]) == set(LATENCIES)
    assert stats["latency"]["count"] == 0
    for name in ("failed", "retries", "short_transfers", "direct_refused", "in_flight"):
        assert stats[name] == 0
    assert stats["devices"] == {}
    assert stats["queue"] == {"in_flight": 0, "waiting": 0}
    assert stats["staging"] == 0
    assert len(stats) == 13


@given(
    requests=st.lists(
        st.tuples(st.booleans(), SIZES, OFFSETS, st.booleans(), st.integers(0, 70)), max_size=12
    ),
    block_size=st.sampled_from([511, 4096, 65536, 1 << 20]),
    parallelism=st.integers(1, 2),
)
def test_every_byte_is_counted_once(
    directory: Path,
    backend: str,
    requests: list[tuple[bool, int, int, bool, int]],
    block_size: int,
    parallelism: int,
) -> None:
    path = sparse(directory / "file", 500_000)
    with aio.aio_handle(
        backend=backend, block_size=block_size, intra_op_parallelism=parallelism
    ) as handle:
        bytes_of = {"read": 0, "write": 0}
        count_of = {"read": 0, "write": 0}
        for write, nbytes, offset, pinned, shift in requests:
            room = locked(handle, nbytes + shift) if pinned else shifted(nbytes, shift)
            view = room[shift:] if pinned else room
            kind = "write" if write else "read"
            if write:
                handle.async_pwrite(view.zero_(), path, offset)
                handle.wait()
            else:
                assert handle.submit_pread(view, path, offset).result() == nbytes
            bytes_of[kind] += nbytes
            count_of[kind] += 1
        stats: Any = handle.stats()
    assert stats["requests"] == count_of
    assert {kind: moved(stats, kind) for kind in bytes_of} == bytes_of
    for kind in bytes_of:
        for name in PATHS:
            assert (stats["transfers"][kind][name] > 0) == (stats["bytes"][kind][name] > 0)
    transfers = sum(sum(by_path.values()) for by_path in stats["transfers"].values())
    assert stats["latency"]["count"] == transfers
    assert (stats["in_flight"], stats["failed"]) == (0, 0)


def test_latency_is_ordered(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, block_size=4096)
    handle.sync_pwrite(torch.ones(NBYTES, dtype=torch.uint8), directory / "file")
    latency = handle.stats()["latency"]
    assert latency["count"] >= NBYTES // 4096
    order = [latency[name] for name in ("p50", "p90", "p99", "p999", "max")]
    assert order == sorted(order)
    assert latency["p50"] > 0
    assert 0 < latency["mean"] <= latency["max"]


def test_paths_on_a_drive(disk: Path, backend: str, make_handle: Any) -> None:
    """Aligned memory goes direct (pinned: fixed, where the engine can), odd addresses staged."""
    handle = make_handle(backend)
    path = disk / "file"
    probe = make_handle(backend)
    probe.sync_pwrite(shifted(NBYTES, 0), path)
    if probe.stats()["direct_refused"]:
        pytest.skip("this file system takes no O_DIRECT")
    handle.sync_pread(shifted(NBYTES, 0), path)
    assert handle.stats()["bytes"]["read"]["direct"] == NBYTES
    handle.sync_pread(locked(handle, NBYTES), path)
    read = handle.stats()["bytes"]["read"]
    assert read["direct"] + read["fixed"] == 2 * NBYTES
    handle.sync_pread(shifted(NBYTES, 1), path)
    read = handle.stats()["bytes"]["read"]
    assert read["staged"] == NBYTES
    assert read["buffered"] == 0
    handle.sync_pread(torch.zeros(10, dtype=torch.uint8), path, 3)
    assert handle.stats()["bytes"]["read"]["buffered"] == 10
    assert handle.stats()["direct_refused"] == 0


def test_fixed_is_for_pinned_memory(disk: Path, make_handle: Any) -> None:
    if "io_uring" not in aio.available_backends():
        pytest.skip("fixed buffers need io_uring, which cannot run here")
    handle = make_handle("io_uring", block_size=65536)
    path = disk / "file"
    plain, pinned = shifted(NBYTES, 0), locked(handle, NBYTES)
    handle.sync_pwrite(plain, path)
    assert handle.stats()["bytes"]["write"]["fixed"] == 0
    handle.sync_pwrite(pinned, path)
    assert handle.stats()["bytes"]["write"]["fixed"] == NBYTES


def test_in_memory_everything_is_buffered(tmpfs: Path, backend: str, make_handle: Any) -> None:
    """O_DIRECT would be a copy with conditions there, so nothing needs an alignment."""
    handle = make_handle(backend)
    for shift in (0, 1):
        handle.sync_pwrite(shifted(NBYTES, shift), tmpfs / "file")
        handle.sync_pread(shifted(NBYTES, shift), tmpfs / "file")
    stats = handle.stats()
    for kind in ("read", "write"):
        assert stats["bytes"][kind]["staged"] == 0
        assert moved(stats, kind) == 2 * NBYTES


def test_refused_direct_io_is_counted(tmp_path: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    with ramfs(tmp_path / "ram") as folder:
        handle.sync_pwrite(shifted(NBYTES, 0), folder / "file")
        stats = handle.stats()
        assert stats["direct_refused"] <= 1
        assert stats["bytes"]["write"]["buffered"] == NBYTES


def test_failures_and_requests(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    bad = refuses_text()
    handle.pwrite_many([(tensor_of(pattern(10, k)), directory / f"{k}") for k in range(5)])
    for _ in range(3):
        with pytest.raises(aio.AioError):
            handle.sync_pwrite(tensor_of(TEXT), bad)
    stats = handle.stats()
    assert stats["failed"] == 3
    assert stats["requests"] == {"read": 0, "write": 8}
    assert moved(stats, "write") == 50


def test_in_flight(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, block_size=512, queue_depth=1)
    path = sparse(directory / "sparse", 8 << 20)
    buffers = [torch.ones(8 << 20, dtype=torch.uint8) for _ in range(2)]
    for buffer in buffers:
        handle.async_pread(buffer, path)
    stats = handle.stats()
    assert stats["in_flight"] == 2
    assert stats["queue"]["in_flight"] <= 1
    assert stats["queue"]["waiting"] <= 2 * (8 << 20) // 512
    assert handle.wait() == 2
    assert handle.stats()["in_flight"] == 0
    assert handle.stats()["queue"] == {"in_flight": 0, "waiting": 0}


@given(
    requests=st.lists(st.tuples(st.booleans(), st.booleans(), SIZES, OFFSETS), max_size=8),
)
def test_every_byte_is_counted_for_its_device(
    disk: Path, tmpfs: Path, backend: str, requests: list[tuple[bool, bool, int, int]]
) -> None:
    expected: dict[str, dict[str, int]] = {}
    with aio.aio_handle(block_size=65536, backend=backend) as handle:
        for on_disk, write, nbytes, offset in requests:
            path = sparse((disk if on_disk else tmpfs) / "file", 500_000)
            number = path.stat().st_dev
            counts = {"read": 0, "write": 0}
            counts = expected.setdefault(f"{os.major(number)}:{os.minor(number)}", counts)
            counts["write" if write else "read"] += nbytes
            buffer = torch.zeros(nbytes, dtype=torch.uint8)
            start = handle.async_pwrite if write else handle.async_pread
            start(buffer, path, offset)
            handle.wait()
        stats: Any = handle.stats()
    moved = {one: counts for one, counts in expected.items() if any(counts.values())}
    assert stats["devices"] == moved


def test_staging_is_memory_that_is_held(disk: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    path = disk / "file"
    handle.sync_pwrite(shifted(NBYTES, 0), path)
    if handle.stats()["bytes"]["write"]["direct"] != NBYTES:
        pytest.skip("this file system takes no O_DIRECT")
    assert handle.stats()["staging"] == 0
    handle.sync_pwrite(shifted(NBYTES, 1), path)
    assert handle.stats()["staging"] >= NBYTES
