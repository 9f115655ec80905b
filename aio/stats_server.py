"""Statistics of this process for `deepnvme top`: off unless asked for.

A daemon thread sends them to whoever connects to the process's endpoint (aio.endpoints). A forked
child has none until it asks for its own.
"""

from __future__ import annotations

import atexit
import errno
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from _deepnvme import io as _io
from _deepnvme import pin as _pin
from aio import endpoints
from aio.living_handles import living_handles
from pinned_manager import pinned_stats
from pinned_manager.switches import parse_switch

_logger = logging.getLogger("aio")

_SEND_S = 5.0  # for a client that does not read


def serve_stats() -> Path:
    """Let `deepnvme top` look at this process from now on; the path of its socket.

    Only this user (and root) can connect. A thread answers, which does not keep the process alive.
    A second call returns the same path. Raises OSError when there can be no socket, or no thread.
    """
    with _state.lock:
        if _state.path is None:
            server, path = endpoints.listen()
            try:
                threading.Thread(
                    target=_serve, args=(server,), name="aio-stats", daemon=True
                ).start()
            except RuntimeError as error:
                path.unlink()
                server.close()
                raise OSError(errno.EAGAIN, f"{error}: raise the limit (ulimit -u)") from error
            _state.server, _state.path = server, path
        return _state.path


def serve_if_asked() -> None:
    """serve_stats() if ``DEEPNVME_TOP`` says so. Where it cannot, that is logged, once."""
    wanted = parse_switch("DEEPNVME_TOP", os.environ.get("DEEPNVME_TOP", ""), default=False)
    if not wanted or _state.failed:
        return
    try:
        serve_stats()
    except OSError as error:
        _state.failed = True
        _logger.warning("deepnvme top cannot look at this process: %s", error)


def sample() -> dict[str, Any]:
    """What `deepnvme top` gets: sizes in bytes, `time` in seconds of the monotonic clock."""
    handles = [one for one in living_handles() if not one.closed]
    locked, limit = _pin.locked_memory()
    return {
        "pid": os.getpid(),
        "command": " ".join(sys.orig_argv),
        "time": time.monotonic(),
        "page_locked": locked,
        "memlock_limit": limit,
        "pinned": pinned_stats(),
        "devices": _io.device_totals(),
        "handles": [
            {
                "number": handle._core.number,
                "block_size": handle.get_block_size(),
                "queue_depth": handle.get_queue_depth(),
                "intra_op_parallelism": handle.get_intra_op_parallelism(),
                "stats": handle.stats(),
            }
            for handle in handles
        ],
    }


class _State:
    """The endpoint of this process, if it has one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.server: socket.socket | None = None
        self.path: Path | None = None
        self.failed = False


_state = _State()


def _serve(server: socket.socket) -> None:
    # Signals are for the program's own threads.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with server:  # closed at the end, so that connections are refused instead of left hanging
        while True:
            try:
                client, _ = server.accept()
            except OSError as error:
                if error.errno != errno.EINVAL:  # which is _stop()'s
                    _logger.warning("deepnvme top is not answered any more: %s", error)
                return
            with client:
                _answer(client)


def _answer(client: socket.socket) -> None:
    try:
        answer = json.dumps(sample()).encode() + b"\n"
    except Exception:
        _logger.exception("deepnvme top was not answered")
        return
    client.settimeout(_SEND_S)
    with suppress(OSError):  # the client has gone
        client.sendall(answer)


@atexit.register
def _stop() -> None:
    if _state.server is not None and _state.path is not None:
        _state.path.unlink(missing_ok=True)
        with suppress(OSError):  # the thread has ended, and closed it
            _state.server.shutdown(socket.SHUT_RDWR)  # which wakes the thread; close() does not


def _forget_parents_endpoint() -> None:
    """The child's copy of the socket would keep connections to a dead parent hanging."""
    global _state
    if _state.server is not None:
        _state.server.close()
    _state = _State()


os.register_at_fork(after_in_child=_forget_parents_endpoint)
