"""Many ends of an interpreter for one import of torch, which takes a second; for scripts only."""

from __future__ import annotations

import gc
import os
import sys


def number_of_child(count: int, at_once: bool = False) -> int:
    """Fork `count` children, one after another unless `at_once`; their number, in each of them.

    It does not return in the parent, whose status says whether all ended with 0.
    """
    # The last collection of a child would pass what the parent has imported, which takes a second.
    gc.freeze()
    running: list[int] = []
    ends: list[int] = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            return number
        running.append(pid)
        if not at_once:
            ends.append(_end_of(running.pop()))
    ends += [_end_of(pid) for pid in running]
    sys.exit(f"the children ended with {ends}" if any(ends) else 0)


def _end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
