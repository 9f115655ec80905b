"""A watchdog for the processes that fault-injection tests run in, and whether this is one."""

from __future__ import annotations

import faulthandler
import os

REPORTS = "DEEPNVME_FAULTY_REPORTS"  # where a child of support.faulty_process reports to
IN_CHILD = REPORTS in os.environ
TEST_HANG_S = 60  # of one example where a test has many

# pytest captures file descriptor 2 later.
_STDERR = os.dup(2) if IN_CHILD else -1


def watch() -> None:
    """From now on the child has a minute, then it dies and shows what every thread was doing."""
    faulthandler.dump_traceback_later(TEST_HANG_S, exit=True, file=_STDERR)


def rest() -> None:
    """Nothing is waited for any more."""
    faulthandler.cancel_dump_traceback_later()
