"""The sockets on which processes tell `deepnvme top` what they do: where they are, who may.

One file for each process, ``PID.sock``, in a directory that only its user can enter. A process
listens before the file gets its name, so a file that refuses connections is of a dead process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

ANSWER_S = 10.0  # for a process that is slow to answer
LONGEST_PATH = 107  # bytes of a socket's path (unix(7))


def directories() -> list[Path]:
    """Where endpoints may be, the preferred place first; none has to exist."""
    found = [Path("/tmp", f"deepnvme-{os.geteuid()}")]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        found.insert(0, Path(runtime, "deepnvme"))
    return found


def check_directory(directory: Path) -> None:
    """Raises PermissionError unless it is this user's alone, FileNotFoundError without one."""
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(
            errno.EACCES,
            f"it must be a directory of user {os.geteuid()} with mode 0700, but its owner is "
            f"{found.st_uid} and its mode {stat.filemode(found.st_mode)}; remove it, or set "
            "XDG_RUNTIME_DIR to a directory of your own",
            str(directory),
        )


def listen() -> tuple[socket.socket, Path]:
    """A socket that listens as this process's endpoint, and its path.

    Raises OSError when there can be none.
    """
    directory = directories()[0]
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    check_directory(directory)
    path = directory / f"{os.getpid()}.sock"
    beginning = directory / f".{os.getpid()}"
    if len(os.fsencode(beginning)) > LONGEST_PATH or len(os.fsencode(path)) > LONGEST_PATH:
        raise OSError(
            errno.ENAMETOOLONG,
            f"a socket's path has at most {LONGEST_PATH} bytes; "
            "set XDG_RUNTIME_DIR to a shorter one",
            str(path),
        )
    if _is_served(path):
        # In another PID namespace, with the same /tmp.
        raise OSError(
            errno.EADDRINUSE,
            "another process has this number and this directory; set XDG_RUNTIME_DIR",
            str(path),
        )
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        beginning.unlink(missing_ok=True)
        server.bind(str(beginning))
        os.chmod(beginning, 0o600)
        server.listen()
        os.rename(beginning, path)
    except OSError:
        server.close()
        raise
    return server, path


def living_endpoints() -> dict[int, Path]:
    """The endpoints of living processes by process number. Those of dead ones are removed."""
    found: dict[int, Path] = {}
    for directory in reversed(directories()):
        try:
            check_directory(directory)
        except FileNotFoundError:
            continue
        for path in directory.glob("*.sock"):
            if not path.stem.isdecimal():
                continue
            if _is_served(path):
                found[int(path.stem)] = path
            else:
                path.unlink(missing_ok=True)
    return dict(sorted(found.items()))


def ask(path: Path) -> Any:
    """What a process tells about itself. Raises OSError when it does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(ANSWER_S)
        client.connect(str(path))
        answer = b""
        while piece := client.recv(1 << 16):
            answer += piece
    if not answer.endswith(b"\n"):
        raise ConnectionError(errno.ECONNRESET, "the process ended while it answered", str(path))
    return json.loads(answer)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(ANSWER_S)
        try:
            client.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except (BlockingIOError, TimeoutError):
            return True  # more want to connect than the kernel keeps
    return True
