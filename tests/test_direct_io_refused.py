"""A file system without O_DIRECT works; real errors are not taken for a refusal (F-01, F-07)."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
from support.buffers import locked, pattern, raw, shifted, tensor_of
from support.child import child_answer, without_capabilities
from support.counters import counters
from support.files import contents
from support.mounts import mounted, ramfs


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[Path]:
    with ramfs(tmp_path / "ramfs") as path:
        yield path


def test_at_open(refusing: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend, block_size=65536, intra_op_parallelism=2)
    data = pattern((1 << 20) + 77)
    path = refusing / "file"
    assert handle.sync_pwrite(tensor_of(data), str(path)) == 1
    assert contents(path) == data
    for back in (
        torch.zeros(len(data), dtype=torch.uint8),
        shifted(len(data), 1),
        locked(handle, len(data)),
    ):
        back.zero_()
        assert handle.sync_pread(back, str(path)) == 1
        assert raw(back) == data
    stats = handle.stats()
    assert stats["bytes"]["write"]["buffered"] == len(data)
    assert stats["bytes"]["read"]["buffered"] == 3 * len(data)
    for way in ("read", "write"):
        for kind in ("direct", "fixed", "staged"):
            assert stats["bytes"][way][kind] == 0, f"{kind} {way} on a file system without O_DIRECT"
    assert stats["direct_refused"] > 0
    assert stats["failed"] == 0


def test_only_the_file_that_refuses(
    refusing: Path, disk: Path, backend: str, make_handle: Any
) -> None:
    """One refusal does not cost the other files their direct I/O."""
    handle = make_handle(backend)
    data = pattern(1 << 20)
    tensor = locked(handle, 1 << 20)
    tensor.copy_(tensor_of(data))
    there, here = refusing / "file", disk / "file"
    try:
        os.close(os.open(here, os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError:
        pytest.skip(f"{disk} refuses O_DIRECT too")
    for path in (there, here, there, here):
        handle.async_pwrite(tensor, str(path))
        assert handle.wait() == 1
        assert contents(path) == data
    moved = handle.stats()["bytes"]["write"]
    assert moved["direct"] + moved["fixed"] == 2 << 20
    assert moved["buffered"] == 2 << 20


def test_a_refusal_by_descriptor(refusing: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    data = pattern(100_000)
    path = refusing / "file"
    with open(path, "w+b") as file:
        assert handle.async_pwrite(tensor_of(data), file.fileno()) == 0
        assert handle.wait() == 1
        back = torch.zeros(len(data), dtype=torch.uint8)
        assert handle.sync_pread(back, file.fileno()) == 1
    assert contents(path) == data
    assert raw(back) == data


def errors_of(handle: Any, path: Path) -> list[int | None]:
    """The errno of opening `path` by every way of reading and writing."""
    tensor = torch.zeros(1 << 16, dtype=torch.uint8)
    found = []
    for way in (
        handle.sync_pread,
        handle.async_pread,
        handle.submit_pread,
        handle.sync_pwrite,
        handle.async_pwrite,
        handle.submit_pwrite,
    ):
        with pytest.raises(aio.AioError) as caught:
            way(tensor, str(path))
        assert caught.value.filename == str(path)
        assert os.strerror(caught.value.errno or 0) in str(caught.value)
        assert str(path) in str(caught.value)
        found.append(caught.value.errno)
    assert handle.wait() == 0
    return found


def test_errors_of_the_path(directory: Path, backend: str, make_handle: Any) -> None:
    handle = make_handle(backend)
    (directory / "plain").write_bytes(bytes(1 << 16))
    (directory / "loop").symlink_to(directory / "loop")
    both = {
        directory / "missing" / "file": errno.ENOENT,
        directory / "plain" / "file": errno.ENOTDIR,
        directory: errno.EISDIR,
        directory / ("n" * 256): errno.ENAMETOOLONG,
        directory / "loop": errno.ELOOP,
    }
    for path, code in both.items():
        assert errors_of(handle, path) == [code] * 6, path
    with pytest.raises(aio.AioError) as caught:
        handle.sync_pread(torch.zeros(5), str(directory / "missing"))
    assert caught.value.errno == errno.ENOENT


def test_a_path_with_a_null_byte(directory: Path, backend: str, make_handle: Any) -> None:
    """Cut at the null byte it would be the name of another file."""
    handle = make_handle(backend)
    with pytest.raises(ValueError, match="null"):
        handle.sync_pwrite(torch.zeros(5), f"{directory}/one\0two")
    assert list(directory.iterdir()) == []


def test_a_running_program_is_busy(disk: Path, backend: str, make_handle: Any) -> None:
    program = disk / "sleep"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    before = contents(program)
    running = subprocess.Popen([program, "60"])
    try:
        with pytest.raises(aio.AioError) as caught:
            make_handle(backend).sync_pwrite(torch.zeros(1 << 16, dtype=torch.uint8), str(program))
        assert caught.value.errno == errno.ETXTBSY
    finally:
        running.kill()
        running.wait(60)
    assert contents(program) == before


def test_a_file_system_that_is_read_only(tmp_path: Path, backend: str, make_handle: Any) -> None:
    with mounted(tmp_path / "mount", "-t", "tmpfs", "-o", "size=1m", "none") as point:
        (point / "file").write_bytes(pattern(5000))
        subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True, timeout=60)
        handle = make_handle(backend)
        with pytest.raises(aio.AioError) as caught:
            handle.sync_pwrite(torch.zeros(5000, dtype=torch.uint8), str(point / "file"))
        assert caught.value.errno == errno.EROFS
        back = torch.zeros(5000, dtype=torch.uint8)
        assert handle.sync_pread(back, str(point / "file")) == 1
        assert raw(back) == pattern(5000)


FORBIDDEN = """
import json, sys
import torch, aio
found = []
for backend in aio.available_backends():
    with aio.aio_handle(backend=backend) as handle:
        for way in (handle.sync_pread, handle.sync_pwrite):
            for name in sys.argv[1:]:
                try:
                    way(torch.zeros(1 << 16, dtype=torch.uint8), name)
                except aio.AioError as error:
                    found.append(error.errno)
print(json.dumps(found))
"""


def test_no_permission(disk: Path, tmpfs: Path) -> None:
    paths = [disk / "file", tmpfs / "file"]
    for path in paths:
        path.write_bytes(bytes(1 << 16))
        path.chmod(0)
    wrapper = without_capabilities("dac_override", "dac_read_search")
    found = child_answer(FORBIDDEN, *paths, wrapper=wrapper)
    assert found == [errno.EACCES] * 4 * len(aio.available_backends())


def test_failed_opens_hold_nothing(directory: Path, backend: str) -> None:
    def fail(times: int) -> None:
        with aio.aio_handle(backend=backend) as handle:
            for _ in range(times):
                errors_of(handle, directory)
                errors_of(handle, directory / "missing" / "file")

    fail(1)
    with counters():
        fail(20)
