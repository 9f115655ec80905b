"""Every transfer on an O_DIRECT descriptor has its file's alignment, always (B-05, B-06)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from support import statx
from support.child import child_answer, preload, with_strace
from support.files import direct_alignment
from support.mounts import ext4_image

# Addresses, lengths and offsets that disagree in every way; each is a request of its own and all
# are right at the end.
REQUESTS = """
import json, os, sys
import torch, aio
from support.buffers import fill, locked, pattern, raw, shifted
backend, name = sys.argv[1:3]
same = []
options = {"block_size": 16384, "queue_depth": 4, "intra_op_parallelism": 3}
with aio.aio_handle(**options, backend=backend) as handle:
    for nbytes in (512, 1536, 4096, 4608, 8192, 40000):
        for shift in (0, 1, 64, 512):
            for offset in (0, 7, 512, 4096):
                for pinned in (False, True):
                    data = pattern(nbytes, seed=shift)
                    if pinned:
                        tensor = locked(handle, nbytes + shift)[shift:]
                    else:
                        tensor = shifted(nbytes, shift)
                    fill(tensor, data)
                    handle.sync_pwrite(tensor, name, offset)
                    with open(name, "rb") as file:
                        file.seek(offset)
                        same.append(file.read(nbytes) == data)
                    tensor.zero_()
                    handle.sync_pread(tensor, name, offset)
                    same.append(raw(tensor) == data)
    direct = sum(handle.stats()["bytes"][way][kind] for way in ("read", "write")
                 for kind in ("direct", "fixed", "staged"))
print(json.dumps({"same": all(same), "count": len(same), "direct": direct}))
"""

OPEN = re.compile(r'openat\([^"]*"(?P<path>[^"]*)", (?P<flags>[A-Z_|0-9x]+)[^)]*\)\s*= (?P<fd>\d+)')
SET_FLAGS = re.compile(r"fcntl\((?P<fd>\d+), F_SETFL, (?P<flags>[A-Z_|0-9x]+)\)\s*= 0")
PLAIN = re.compile(
    r"p(?:read|write)64\((?P<fd>0x[0-9a-f]+), (?P<memory>0x[0-9a-f]+), "
    r"(?P<nbytes>0x[0-9a-f]+|0), (?P<offset>0x[0-9a-f]+|0)\)"
)
BATCHED = re.compile(
    r"aio_fildes=(?P<fd>\d+), aio_buf=(?P<memory>0x[0-9a-f]+), aio_nbytes=(?P<nbytes>\d+), "
    r"aio_offset=(?P<offset>\d+)"
)


def direct_transfers(log: Path) -> list[tuple[int, int, int]]:
    """(address, length, offset) of every transfer submitted on a descriptor with O_DIRECT."""
    direct: dict[int, bool] = {}
    found = []
    text = log.read_text(errors="replace")
    # A line that another thread's interrupted is written in two halves; join them, as they hold one
    # call.
    pending: dict[str, str] = {}
    for line in text.splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            pending[thread] = call.removesuffix("<unfinished ...>")
            if "aio_fildes" not in call and "64(" not in call:
                continue
        elif "resumed>" in call:
            call = pending.pop(thread, "") + call.partition("resumed>")[2]
        if (opened := OPEN.search(call)) or (opened := SET_FLAGS.search(call)):
            direct[int(opened["fd"])] = "O_DIRECT" in opened["flags"].split("|")
        for transfer in [*PLAIN.finditer(call), *BATCHED.finditer(call)]:
            fd, memory, nbytes, offset = (
                int(transfer[field], 0) for field in ("fd", "memory", "nbytes", "offset")
            )
            if direct.get(fd, False):
                found.append((memory, nbytes, offset))
    return found


def check(
    backend: str,
    path: Path,
    log: Path,
    alignment: tuple[int, int] | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """`alignment` is what the file asks of addresses and of offsets, if it is not to be asked."""
    if backend == "io_uring":
        pytest.skip(
            "strace does not see the requests of a ring; its engine is handed the same chunks"
        )
    path.touch()
    memory, offset = alignment or direct_alignment(path)
    wrapper = with_strace(
        log,
        "trace=openat,fcntl,pread64,pwrite64,io_submit",
        "raw=pread64,pwrite64",
        "abbrev=none",
    )
    answer = child_answer(REQUESTS, backend, path, wrapper=wrapper, environment=environment)
    assert answer["count"] == 6 * 4 * 4 * 2 * 2
    assert answer["same"]
    transfers = direct_transfers(log)
    assert answer["direct"] > 0
    assert len(transfers) > 100, "the trace shows no direct transfers: it proves nothing"
    wrong = [
        found for found in transfers if found[0] % memory or found[1] % offset or found[2] % offset
    ]
    assert not wrong, f"{len(wrong)} of {len(transfers)}, the first {wrong[0]}"


def test_on_the_disk(disk: Path, tmp_path: Path, backend: str) -> None:
    check(backend, disk / "file", tmp_path / "log")


def test_on_sectors_of_4096_bytes(tmp_path: Path, backend: str) -> None:
    with ext4_image(tmp_path / "image", 64 << 20, sector_size=4096) as sectors:
        (sectors / "probe").touch()
        assert direct_alignment(sectors / "probe")[1] == 4096
        check(backend, sectors / "file", tmp_path / "log")


def test_where_the_kernel_does_not_say(tmp_path: Path) -> None:
    """The alignment of no drive is larger than a page's: it is kept, and O_DIRECT not given up."""
    environment = preload(tmp_path, statx.silent())
    with ext4_image(tmp_path / "image", 64 << 20, sector_size=4096) as sectors:
        check("posix", sectors / "file", tmp_path / "log", (4096, 4096), environment)
