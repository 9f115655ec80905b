"""Directories that belong to one living store each.

1. A namespace is a directory ``NAME-HEX`` or ``NAME-rRANK-HEX`` (HEX: 64 random bits), so that no
   two stores share one, whatever their rank, run or machine.
2. It is owned by who holds flock(2) on its file ``lock``: the kernel lets go of it when the process
   ends, however it ends. The file says who that is.
3. To make one: mkdir, create ``lock``, flock it, look whether it is still there by that name, write
   the record. What disappears in between was reclaimed by another store, and is tried again under
   another name.
4. To reclaim what a dead process left: take the lock without waiting, look whether the file is
   still there by that name, check the record; then unlink files with the names that a store gives,
   ``lock`` last, and rmdir. What else lies there stays, and so does the directory then.
5. A lock that nobody holds proves nothing about another machine, since not every file system
   carries flock to it. A record of another host and boot is left alone.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import secrets
import socket
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path

_logger = logging.getLogger("aio.swap")

LOCK_NAME = "lock"
SEGMENT_NAME = re.compile(r"segment-\d{6}")
LONGEST_FILE = "segment-000000"
_PATH_MAX = 4096  # bytes with the zero at the end: limits.h
LONGEST_NAME = 128  # characters; the suffix and NAME_MAX leave room for it
_TRIES = 100
_FORMAT = "deepnvme swap 1"


@dataclass(frozen=True)
class OwnerRecord:
    """Who owns a namespace: for people who look, and to tell machines apart."""

    namespace: str
    pid: int
    started: int  # clock ticks between boot and the start of the process
    boot_id: str
    host: str
    format: str = _FORMAT

    @classmethod
    def of_this_process(cls, namespace: str) -> OwnerRecord:
        return cls(namespace, os.getpid(), _process_start(), _boot_id(), socket.gethostname())


class Namespace:
    """A directory that this process owns until ``remove()``, or until it ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        _owned.add(self)

    @classmethod
    def make(cls, directory: Path, name: str) -> Namespace:
        """A new one in an existing directory. OSError where it, or a lock in it, cannot be had."""
        rank = os.environ.get("RANK", "")
        prefix = f"{name}-r{int(rank)}" if rank.isdecimal() else name
        _check_length(directory / f"{prefix}-{'0' * 16}" / LONGEST_FILE)
        for _ in range(_TRIES):
            path = directory / f"{prefix}-{secrets.token_hex(8)}"
            path.mkdir(mode=0o700)
            try:
                descriptor = os.open(
                    path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
                )
            except FileNotFoundError:
                continue  # another store has reclaimed it
            except BaseException:
                _remove_empty(path)
                raise
            try:
                if _lock(path / LOCK_NAME, descriptor):
                    record = OwnerRecord.of_this_process(path.name)
                    os.pwrite(descriptor, json.dumps(asdict(record)).encode(), 0)
                    return cls(path, descriptor)
            except BaseException:
                try:
                    _delete(path)
                finally:
                    os.close(descriptor)
                raise
            os.close(descriptor)  # another store is reclaiming it
        raise OSError(errno.EBUSY, "others reclaim every new namespace at once", str(directory))

    def remove(self) -> None:
        """Delete the directory and the store's files in it, and let go of it. Repeating it is
        harmless.
        """
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            _delete(self.path)
        finally:
            os.close(descriptor)

    def disown(self) -> None:
        """In a forked child: the directory stays its parent's."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def check_name(name: str) -> None:
    """ValueError for what cannot start the name of a directory."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or name.startswith("."):
        raise ValueError(
            f"name is {name!r}, but must be of letters, digits, '.', '_' and '-', and not start "
            "with '.'"
        )
    if len(name) > LONGEST_NAME:
        raise ValueError(f"name has {len(name)} characters, but may have {LONGEST_NAME}")


def reclaim_leftovers(directory: Path, name: str) -> list[Path]:
    """Delete namespaces of that name whose owners are dead; returns those that are gone."""
    mine = re.compile(rf"{re.escape(name)}(-r\d+)?-[0-9a-f]{{16}}")
    with os.scandir(directory) as entries:
        found = [
            Path(entry.path)
            for entry in entries
            if mine.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    return [path for path in found if _reclaim(path)]


def _reclaim(path: Path) -> bool:
    """Whether it is gone. What cannot be deleted does not keep a new store from being made."""
    try:
        return _delete_if_dead(path)
    except OSError as error:
        _logger.warning("%s could not be reclaimed: %s", path, error)
        return False


def _delete_if_dead(path: Path) -> bool:
    lock = path / LOCK_NAME
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Being made, or of a process that died before it made a lock: empty then.
        return _remove_empty(path)
    except OSError as error:
        _logger.info("%s is left alone: %s", path, error)
        return False
    try:
        if not _lock(lock, descriptor) or not _is_ours(path, os.pread(descriptor, 4096, 0)):
            return False
        _delete(path)
    finally:
        os.close(descriptor)
    if path.exists():
        return False
    _logger.info("reclaimed %s", path)
    return True


def _is_ours(path: Path, record: bytes) -> bool:
    """Whether what lies there was left by a store of this machine."""
    if not record:  # died between the lock and the record
        return os.listdir(path) == [LOCK_NAME]
    try:
        owner = OwnerRecord(**json.loads(record))
    except (ValueError, TypeError, RecursionError):
        _logger.info("%s is left alone: its lock is not a store's", path)
        return False
    if owner.format != _FORMAT or owner.namespace != path.name:
        return False
    if owner.boot_id != _boot_id() and owner.host != socket.gethostname():
        _logger.info("%s is left alone: it is of host %s", path, owner.host)
        return False
    return True


def _delete(path: Path) -> None:
    """Unlink the files that a store makes, the lock last, so that a kill half way can be reclaimed
    too.
    """
    if not path.exists():
        return  # somebody has deleted it
    for name in os.listdir(path):
        if SEGMENT_NAME.fullmatch(name):
            (path / name).unlink(missing_ok=True)
    (path / LOCK_NAME).unlink(missing_ok=True)
    if not _remove_empty(path) and path.exists():
        _logger.warning("%s is not removed: it holds files that no store has made", path)


def _remove_empty(path: Path) -> bool:
    try:
        path.rmdir()
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            return False
        raise
    return True


def _lock(path: Path, descriptor: int) -> bool:
    """Whether this descriptor now holds the lock, and the file is still there by its name."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise OSError(
            error.errno,
            f"flock: {error.strerror}; choose a directory on a file system that has locks",
            str(path),
        ) from error
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _check_length(path: Path) -> None:
    nbytes = len(os.fsencode(path))
    if nbytes >= _PATH_MAX:
        raise OSError(
            errno.ENAMETOOLONG,
            f"with the names of a store's files the path has {nbytes} bytes, but at most "
            f"{_PATH_MAX - 1} are possible; choose a directory with a shorter path",
            str(path),
        )


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _process_start() -> int:
    # Fields after the command, which may hold anything, parentheses included: proc_pid_stat(5).
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


_owned: weakref.WeakSet[Namespace] = weakref.WeakSet()


def _disown_all() -> None:
    """A child that kept the locks open would make a dead parent look alive."""
    for namespace in list(_owned):
        namespace.disown()


os.register_at_fork(after_in_child=_disown_all)
