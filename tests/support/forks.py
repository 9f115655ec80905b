"""Forked children of the test process: what they run, and the verdict on how they ended."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable

import pytest

HANG_S = 60
FAILED = 17  # exit status of a child whose code raised


def fork_and(code: Callable[[], None]) -> int:
    """Fork; the child runs `code` and leaves without pytest's cleanup. Returns its pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Forking beside threads is the very thing these tests are about.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    status = FAILED
    try:
        # A child that hangs ends itself, so that nothing is left behind.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANG_S)
        code()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def expect_child_ok(pid: int) -> None:
    """Wait for a child of `fork_and`; it must have ended well."""
    _, status = os.waitpid(pid, 0)
    how = os.waitstatus_to_exitcode(status)
    if how == -signal.SIGALRM:
        pytest.fail("the forked child hung")
    if how != 0:
        pytest.fail(f"the forked child ended with {how}")
