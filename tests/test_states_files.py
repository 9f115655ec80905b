"""Files of offloaded states collide with nothing, and are gone when nobody needs them, however a
process ends (G-03, G-04).
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
import torch

from pinned_manager.states import offload_states, release, reload_states
from pinned_manager.states.swap_file import SwapFile
from support.child import run_child
from support.counters import counters, until
from support.forks import expect_child_ok, fork_and
from support.mounts import small_tmpfs
from support.states import picture, tensors_of

MIB = 1 << 20


def training(value: float, numel: int = 5000) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.full((numel,), value))])


def used_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def test_nobody_else_is_touched(disk: Path) -> None:
    """Two targets, one directory, things of other people in it; the moves interleaved."""
    (disk / "foreign").write_bytes(b"foreign")
    trainings = [training(float(number)) for number in range(4)]
    before = [picture(tensors_of(one)) for one in trainings]
    for one in trainings:
        offload_states(one, device="nvme", nvme_path=disk)
    for one, seen in zip(reversed(trainings), reversed(before), strict=True):
        reload_states(one)
        assert picture(tensors_of(one)) == seen
        offload_states(one, device="nvme", nvme_path=disk)
    release(trainings[0])
    for one, seen in zip(trainings[1:], before[1:], strict=True):
        reload_states(one)
        assert picture(tensors_of(one)) == seen
    assert [path.name for path in disk.iterdir()] == ["foreign"]


def test_a_directory_that_gives_no_name_back(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the sticky bit of somebody else's: the states stay, the empty file is named."""
    one = training(1.0)
    before = picture(tensors_of(one))

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    with counters(), monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(PermissionError) as raised:
            offload_states(one, device="nvme", nvme_path=disk)
    (left,) = disk.iterdir()
    assert (raised.value.filename, left.stat().st_size) == (str(left), 0)
    assert picture(tensors_of(one)) == before


def test_names_are_of_one_use(disk: Path) -> None:
    first, second = SwapFile(disk), SwapFile(disk)
    assert first.path != second.path
    assert f"-{os.getpid()}-" in first.path.name
    assert os.fstat(first.descriptor).st_nlink == 0  # no name that another could open
    assert os.fstat(first.descriptor).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(first.descriptor)


def test_a_name_that_is_taken_is_left_alone(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be there by chance, or by somebody's wish."""
    victim = disk / "victim"
    victim.write_bytes(b"victim")
    monkeypatch.setattr("secrets.token_hex", lambda _: "fixed")
    taken = SwapFile(disk).path.name.rsplit("-", 2)
    link = disk / f"{taken[0]}-{int(taken[1]) + 1}-fixed"
    link.symlink_to(victim)
    with pytest.raises(FileExistsError):
        SwapFile(disk)
    assert link.is_symlink()
    assert victim.read_bytes() == b"victim"


@pytest.mark.parametrize("how", ["reload", "release", "drop", "drop parameters"])
def test_the_room_is_given_back(tmp_path: Path, how: str) -> None:
    optimizer: torch.optim.Optimizer | None = training(1.0, MIB)
    with small_tmpfs(tmp_path / "small", 16 * MIB) as small, counters():
        empty = used_bytes(small)
        offload_states(optimizer, device="nvme", nvme_path=small)
        assert used_bytes(small) >= 4 * MIB
        if how == "reload":
            reload_states(optimizer)
        elif how == "release":
            release(optimizer)
        elif how == "drop":
            optimizer = None
        else:
            assert optimizer is not None
            optimizer.param_groups.clear()
            offload_states(optimizer)  # any call notices
        until(lambda: used_bytes(small) == empty, "the room of the file free again")


def test_a_process_that_is_killed(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", 16 * MIB) as small:
        empty = used_bytes(small)
        optimizer = training(1.0, MIB)

        def child() -> None:
            offload_states(optimizer, device="nvme", nvme_path=small)
            signal.pause()

        pid = fork_and(child)
        try:
            until(lambda: used_bytes(small) >= 4 * MIB, "the states in the file")
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        until(lambda: used_bytes(small) == empty, "the room of the file free again")
        assert list(small.iterdir()) == []


EXITS = """
import sys
import torch
from pinned_manager.states import offload_states
optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.ones(1 << 18))]) for _ in range(2)]
offload_states(optimizers[0], device="nvme", nvme_path=sys.argv[1])
offload_states(optimizers[1])
"""


def test_a_process_that_exits(disk: Path) -> None:
    done = run_child(EXITS, disk)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("place", ["cpu", "nvme"])
def test_a_forked_child_owns_nothing(tmp_path: Path, place: str) -> None:
    optimizer, other = training(1.0, MIB), training(2.0, 100)
    before = picture(tensors_of(optimizer))
    other_before = picture(tensors_of(other))
    with small_tmpfs(tmp_path / "small", 16 * MIB) as small:
        empty = used_bytes(small)
        offload_states(optimizer, device=place, nvme_path=small)
        away = picture(tensors_of(optimizer))
        go_on_read, go_on = os.pipe()

        def child() -> None:
            for move in (reload_states, offload_states):
                with pytest.raises(RuntimeError, match="forked child"):
                    move(optimizer)
            offload_states(other, device="nvme", nvme_path=small)  # of its own it moves anything
            reload_states(other)
            assert picture(tensors_of(other)) == other_before
            os.close(go_on)
            os.read(go_on_read, 1)  # lives on while the parent goes on
            release(optimizer)  # forgets
            reload_states(optimizer)

        pid = fork_and(child)
        os.close(go_on_read)
        try:
            offload_states(optimizer, device=place, nvme_path=small)
            assert picture(tensors_of(optimizer)) == away
            reload_states(optimizer)
            assert picture(tensors_of(optimizer)) == before
            # The child holds no descriptor of the file, so its room is free already.
            until(lambda: used_bytes(small) == empty, "the room of the file free again")
        finally:
            os.close(go_on)
            expect_child_ok(pid)
        assert picture(tensors_of(optimizer)) == before
