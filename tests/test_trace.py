"""A trace shows every call, and every byte of every request in one transfer."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aio
from support.buffers import locked, shifted
from support.in_flight import sparse
from support.layouts import OFFSETS, SIZES
from support.traces import check_covered, check_flows, check_stats, check_tracks, read_trace

ROOM = 700_000
_numbers = itertools.count()

REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["sync", "async", "submit"]),
        st.booleans(),
        SIZES,
        OFFSETS,
        st.booleans(),
        st.integers(0, 70),
    ),
    max_size=10,
)


@given(
    requests=REQUESTS,
    block_size=st.sampled_from([511, 4096, 65536, 1 << 20]),
    workers=st.integers(1, 2),
    depth=st.sampled_from([1, 2, 128]),
)
def test_every_byte_is_in_one_transfer(
    directory: Path, backend: str, requests: Any, block_size: int, workers: int, depth: int
) -> None:
    path = sparse(directory / "file", ROOM)
    target = directory / f"{next(_numbers)}.json"
    done = []
    counts = dict.fromkeys(("sync", "async", "submit"), 0)
    with aio.aio_handle(
        block_size, depth, intra_op_parallelism=workers, backend=backend, trace=target
    ) as handle:
        for how, write, nbytes, offset, pinned, shift in requests:
            room = locked(handle, nbytes + shift) if pinned else shifted(nbytes, shift)
            buffer = room[shift:] if pinned else room
            name = f"{how}_{'pwrite' if write else 'pread'}"
            answer = getattr(handle, name)(buffer, path, offset)
            if how == "async":
                assert handle.wait() == 1
            elif how == "submit":
                assert answer.result() == nbytes
            counts[how] += 1
            done.append(("write" if write else "read", str(path), offset, nbytes))
        stats = handle.stats()
    trace = read_trace(target)
    assert trace.dropped == 0
    check_covered(trace, done)
    check_stats(trace, stats)
    check_tracks(trace)
    check_flows(trace)
    for how in ("sync", "async", "submit"):
        calls = [call for call in trace.calls if call["name"].startswith(f"{how}_")]
        mine = [one for (kind, *_), one in zip(requests, done, strict=True) if kind == how]
        shown = [
            (
                "write" if call["name"].endswith("pwrite") else "read",
                *(call["args"][key] for key in ("path", "offset", "bytes")),
            )
            for call in calls
        ]
        assert shown == mine
        assert all((call["args"]["requests"], call["args"]["errno"]) == (1, 0) for call in calls)
    assert len(trace.calls_of("wait")) == counts["async"] + 1  # close() waits too
    assert len(trace.calls_of("wait for a future")) == counts["submit"]
    assert {event["pid"] for event in trace.events} == {os.getpid()}


def test_tracks_of_threads_workers_and_handles(directory: Path, backend: str) -> None:
    target = directory / "trace.json"
    handles = [
        aio.aio_handle(4096, 4, intra_op_parallelism=2, backend=backend, trace=target)
        for _ in range(2)
    ]

    def work(handle: Any, number: int) -> None:
        path = directory / f"{number}"
        handle.sync_pwrite(torch.ones(100), path)
        handle.pwrite_many([(torch.ones(100_000), path, 1), (torch.ones(7), path)])
        handle.fsync(path)

    threads = [
        threading.Thread(target=work, args=(handles[number % 2], number)) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work(handles[0], 4)
    for handle in handles:
        handle.close()
    trace = read_trace(target)
    check_tracks(trace)
    check_flows(trace)
    assert len({call["tid"] for call in trace.calls}) == 5 or len(trace.calls_of("fsync")) == 5
    assert trace.names[os.getpid()] == "main thread"
    numbers = [handle._core.number for handle in handles]
    rows = {trace.names[one["tid"]].partition(" +")[0] for one in trace.transfers}
    assert {f"handle {number} inline 0" for number in numbers} <= rows
    assert {row.rpartition(" ")[0] for row in rows} == {
        f"handle {number} {kind}" for number in numbers for kind in ("inline", "worker")
    }
    for call in trace.calls_of("submit_pwrite_many"):
        assert (call["args"]["requests"], call["args"]["failed"]) == (2, 0)
        assert "path" not in call["args"]


def test_failures_are_in_the_call(directory: Path, backend: str) -> None:
    target, short = directory / "trace.json", directory / "short"
    short.write_bytes(b"x" * 10)
    with aio.aio_handle(backend=backend, trace=target) as handle:
        with pytest.raises(aio.AioError):
            handle.sync_pread(torch.zeros(100), directory / "none")
        with pytest.raises(aio.AioError):
            handle.submit_pread_many([(torch.zeros(100), short), (bytearray(10), short)]).result()
        with pytest.raises(ValueError, match="must be from 0"):
            handle.sync_pread(torch.zeros(1), short, -1)
    trace = read_trace(target)
    (missing,) = trace.calls_of("sync_pread")
    assert (missing["args"]["errno"], missing["args"]["failed"]) == (2, 1)
    (waited,) = trace.calls_of("wait for a future")
    assert (waited["args"]["requests"], waited["args"]["failed"]) == (2, 1)
    assert waited["args"]["errno"] == 61  # ENODATA


def test_a_call_that_raises(tmp_path: Path) -> None:
    """What is no error of a file has no errno, but the call was not done."""
    target, beyond = tmp_path / "trace.json", (1 << 63) - 50
    with aio.aio_handle(trace=target) as handle:
        handle.sync_pwrite(b"x" * 100, tmp_path / "file")
        with pytest.raises(ValueError, match="end of any file"):
            handle.sync_pwrite(b"x" * 100, tmp_path / "file", beyond)
    done, refused = (one["args"] for one in read_trace(target).calls_of("sync_pwrite"))
    assert ("raised" in done, done["errno"]) == (False, 0)
    assert (refused["raised"], refused["errno"], refused["offset"]) == (True, 0, beyond)


def test_names_that_are_not_text(directory: Path) -> None:
    """Quotes, control characters and bytes that are not UTF-8 come back as os.fsdecode has them."""
    target = directory / "trace.json"
    names = ['a"b\\c\n\x01', "\u00e9\u20ac\U0001f600", os.fsdecode(b"\xff\xfe x"), "n" * 200]
    with aio.aio_handle(trace=target) as handle:
        for name in names:
            handle.sync_pwrite(b"1", directory / name)
        descriptor = os.open(directory / names[0], os.O_RDONLY)
        handle.sync_pread(bytearray(1), descriptor)
        os.close(descriptor)
    shown = [one["args"]["path"] for one in read_trace(target).transfers]
    assert shown == [str(directory / name) for name in [*names, names[0]]]
