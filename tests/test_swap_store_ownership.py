"""Stores on one path never meet; what a dead one left is reclaimed by name (G-03, G-04, G-06)."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from aio.swap import SwapStore
from aio.swap.ownership import LOCK_NAME, Namespace, reclaim_leftovers
from support.buffers import pattern, raw, tensor_of
from support.child import TESTS, run_child
from support.counters import counters
from support.forks import expect_child_ok, fork_and

RANKS = 2
HOLDER = """
import sys
import torch
from aio.swap import SwapStore
store = SwapStore(sys.argv[1], name=sys.argv[2])
store.put("x", [torch.ones(100_000)]).result()
print("ready", flush=True)
sys.stdin.read()
"""


def start_holder(directory: Path, name: str) -> subprocess.Popen[str]:
    """A process that makes a store, says so, and keeps it until it is killed."""
    path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=TESTS.parent,
    )


def await_store(holder: subprocess.Popen[str]) -> None:
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"


def kill(holder: subprocess.Popen[str]) -> None:
    """As often as wanted."""
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    for pipe in (holder.stdin, holder.stdout):
        if pipe is not None:
            pipe.close()


def test_two_stores_with_the_same_names_and_sizes(tmp_path: Path, make_handle: Any) -> None:
    handle = make_handle()
    with SwapStore(tmp_path, handle) as first:
        first.put("p", [tensor_of(pattern(50_000, 1))]).result()
        with SwapStore(tmp_path, handle) as second:  # made while the other has data
            second.put("p", [tensor_of(pattern(50_000, 2))]).result()
            second.put("q", [tensor_of(pattern(70_000, 3))]).result()
            assert raw(first.get("p").result()[0]) == pattern(50_000, 1)
            assert raw(second.get("p").result()[0]) == pattern(50_000, 2)
            assert "q" not in first
        assert raw(first.get("p").result()[0]) == pattern(50_000, 1)
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_ranks_at_the_same_time(tmp_path: Path) -> None:
    """Processes make and drop stores on one new directory, each with its own content."""
    script = """
import sys
import torch
from aio.swap import SwapStore
rank = int(sys.argv[2])
for round in range(20):
    with SwapStore(sys.argv[1], name="shared") as store:
        for name in ("a", "b"):
            store.put(name, [torch.full((20_000,), float(rank))]).result()
        for name in ("a", "b"):
            assert bool((store.get(name).result()[0] == rank).all())
"""
    children = []
    for rank in range(RANKS):
        pid = fork_and(lambda rank=rank: _check_run(script, tmp_path / "new" / "deep", rank))
        children.append(pid)
    for pid in children:
        expect_child_ok(pid)
    assert list((tmp_path / "new" / "deep").iterdir()) == []


def _check_run(script: str, directory: Path, rank: int) -> None:
    done = run_child(script, directory, rank, environment={"RANK": str(rank)})
    if done.returncode != 0 or done.stderr:
        raise AssertionError(done.stderr)


def test_rank_is_in_the_name(tmp_path: Path, monkeypatch: Any, make_handle: Any) -> None:
    monkeypatch.setenv("RANK", "7")
    with SwapStore(tmp_path, make_handle(), name="opt"):
        (path,) = tmp_path.iterdir()
        assert path.name.startswith("opt-r7-")
        record = json.loads((path / LOCK_NAME).read_bytes())
        assert record["pid"] == os.getpid()
        assert record["host"] == socket.gethostname()


def test_killed_and_started_again(tmp_path: Path, make_handle: Any) -> None:
    """What is alive, foreign, or of another name stays; what is dead goes, files and all."""
    (tmp_path / "swap-notes").write_text("mine")
    (tmp_path / "swap-0123456789abcdef").mkdir()
    (tmp_path / "swap-0123456789abcdef" / "data").write_text("mine too")
    living, dead = start_holder(tmp_path, "swap"), start_holder(tmp_path, "swap")
    other = start_holder(tmp_path, "swap-other")
    try:
        for holder in (living, dead, other):
            await_store(holder)
        kill(dead)
        kill(other)
        assert len(list(tmp_path.iterdir())) == 5
        with SwapStore(tmp_path, make_handle()) as store:
            store.put("x", [torch.zeros(10)]).result()
            names = {path.name for path in tmp_path.iterdir()}
            assert len(names) == 5  # the dead one is gone, this one is new
            assert sum(name.startswith("swap-other-") for name in names) == 1
        with SwapStore(tmp_path, make_handle(), name="swap-other"):
            pass
        assert len(list(tmp_path.iterdir())) == 3
    finally:
        for holder in (living, dead, other):
            kill(holder)
    with SwapStore(tmp_path, make_handle()):
        pass
    assert (tmp_path / "swap-notes").read_text() == "mine"
    assert (tmp_path / "swap-0123456789abcdef" / "data").read_text() == "mine too"
    assert len(list(tmp_path.iterdir())) == 2


def leave(directory: Path, **changes: str) -> Path:
    """A namespace whose owner is dead, with a record that says something else."""
    namespace = Namespace.make(directory, "swap")
    lock = namespace.path / LOCK_NAME
    lock.write_text(json.dumps({**json.loads(lock.read_bytes()), **changes}))
    (namespace.path / "segment-000000").write_bytes(bytes(100))
    namespace.disown()
    return namespace.path


def test_foreign_files_inside_stay(tmp_path: Path) -> None:
    path = leave(tmp_path)
    (path / "mine").write_text("x")
    assert reclaim_leftovers(tmp_path, "swap") == []
    assert [file.name for file in path.iterdir()] == ["mine"]


def test_another_machine_on_a_shared_file_system_is_left_alone(tmp_path: Path) -> None:
    """Its lock may not be seen here."""
    path = leave(tmp_path, host="elsewhere", boot_id="0")
    assert reclaim_leftovers(tmp_path, "swap") == []
    assert (path / "segment-000000").exists()


@pytest.mark.parametrize("changes", [{"boot_id": "0"}, {"host": "a container"}])
def test_after_a_reboot_or_in_another_container(tmp_path: Path, changes: dict[str, str]) -> None:
    path = leave(tmp_path, **changes)
    assert reclaim_leftovers(tmp_path, "swap") == [path]


@pytest.mark.parametrize("changes", [{"format": "other"}, {"namespace": "swap-copied"}])
def test_what_is_not_a_store_is_left_alone(tmp_path: Path, changes: dict[str, str]) -> None:
    path = leave(tmp_path, **changes)
    assert reclaim_leftovers(tmp_path, "swap") == []
    assert (path / "segment-000000").exists()


@pytest.mark.parametrize("half", ["no lock", "no record"])
def test_killed_while_it_was_made(tmp_path: Path, half: str) -> None:
    path = tmp_path / "swap-0123456789abcdef"
    path.mkdir()
    if half == "no record":
        (path / LOCK_NAME).touch()
    assert reclaim_leftovers(tmp_path, "swap") == [path] or not path.exists()
    assert not path.exists()


def test_a_store_that_is_being_made_survives_others(tmp_path: Path, monkeypatch: Any) -> None:
    """A reclaimer that comes between mkdir and the lock costs one more try."""
    real, tries = os.open, []

    def interrupted(path: Any, flags: int, *more: Any) -> int:
        if str(path).endswith(LOCK_NAME) and flags & os.O_EXCL and not tries:
            tries.append(path)
            reclaim_leftovers(tmp_path, "swap")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", interrupted)
    namespace = Namespace.make(tmp_path, "swap")
    assert len(tries) == 1
    assert (namespace.path / LOCK_NAME).exists()
    namespace.remove()


def test_a_store_whose_every_directory_is_reclaimed(tmp_path: Path, monkeypatch: Any) -> None:
    """Others that come between the file and its lock: it gives up, and leaves nothing."""
    real, tries = os.open, []

    def interrupted(path: Any, flags: int, *more: Any) -> int:
        descriptor = real(path, flags, *more)
        if str(path).endswith(LOCK_NAME) and flags & os.O_EXCL:
            tries.append(path)
            reclaim_leftovers(tmp_path, "swap")
        return descriptor

    monkeypatch.setattr(os, "open", interrupted)
    with counters():
        with pytest.raises(OSError, match="others reclaim") as caught:
            Namespace.make(tmp_path, "swap")
        assert (caught.value.errno, caught.value.filename) == (errno.EBUSY, str(tmp_path))
    assert len(set(tries)) == 100
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_vanishes(tmp_path: Path) -> None:
    """Not tried for ever."""
    with pytest.raises(FileNotFoundError):
        Namespace.make(tmp_path / "gone", "swap")


def test_removing_twice(tmp_path: Path) -> None:
    """The second one closes nobody else's descriptor."""
    namespace = Namespace.make(tmp_path, "swap")
    namespace.remove()
    with open(os.devnull) as others:  # perhaps with the number of the lock
        namespace.remove()
        assert others.read() == ""
    assert list(tmp_path.iterdir()) == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    path = leave(target)
    (tmp_path / "swap-0123456789abcdef").symlink_to(path)
    assert reclaim_leftovers(tmp_path, "swap") == []
    assert (path / "segment-000000").exists()


def test_a_child_does_not_keep_a_dead_parent_alive(tmp_path: Path) -> None:
    """The lock goes with the parent, also where a fork is still running."""
    namespace = Namespace.make(tmp_path, "swap")
    (ready, forked), (stay, go) = os.pipe(), os.pipe()

    def child() -> None:
        os.close(go)
        os.write(forked, b"x")
        os.read(stay, 1)  # until the parent has looked

    pid = fork_and(child)
    os.read(ready, 1)
    namespace.disown()  # as its end would
    try:
        assert reclaim_leftovers(tmp_path, "swap") == [namespace.path]
    finally:
        for descriptor in (ready, forked, stay, go):
            os.close(descriptor)
    expect_child_ok(pid)
