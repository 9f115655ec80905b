"""Schedules of faults, drawn by hypothesis: what engines and system calls of this process answer.

They can be drawn anywhere, but installed only in a child of support.faulty_process.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import Phase
from hypothesis import strategies as st

import _deepnvme

# Null where the extension is the shipped one: in the parent, which only collects tests.
faults: Any = getattr(_deepnvme.io, "faults", None)

# What an answer list can say besides a number of bytes or transfers and a negative errno.
ALL_BYTES = 2**63 - 1
ALL_TRANSFERS = 2**31 - 1
AS_USUAL, SPURIOUS = 1, 0

# All but the explanation of what else would fail, which costs hundreds of examples.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)

TRANSIENT = (errno.EINTR, errno.EAGAIN, errno.EBUSY)
# What the library answers by another way instead of by an error, on some transfers.
REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP, errno.EFAULT)
FINAL = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.ENODEV, errno.ENOMEM)
ALL_CALLS = 1 << 40

# Calls that requests make, and those that only an engine which is not wrapped may see fail: the
# wrapper takes a failure of the engine inside for a bug.
CALLS = ("open", "statx", "fcntl", "fallocate", "fstatfs", "dup", "mmap", "madvise", "clone")
TRANSFER_CALLS = ("pread", "pwrite", "io_uring_register", "eventfd")
REAP_CALLS = ("io_uring_enter", "io_getevents")
ENGINE_CALLS = (*REAP_CALLS, "io_submit", "io_uring_setup", "io_setup")


@dataclass(frozen=True)
class Schedule:
    """The arguments of faults.install(); answers are used up in order, then all is well."""

    submits: tuple[int, ...] = ()
    reaps: tuple[int, ...] = ()
    fates: tuple[int, ...] = ()
    holds: tuple[int, ...] = ()
    registers: tuple[int, ...] = ()
    calls: tuple[tuple[str, int, int, int], ...] = ()  # name, first, count, errno
    refuse_direct: bool = False
    refuse_fixed: bool = False
    dies_after: int = -1
    engines: bool = True

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Things go wrong inside the block."""
        self.install()
        try:
            yield
        finally:
            faults.clear()

    def install(self) -> None:
        faults.install(**self.__dict__)


def _runs(answers: st.SearchStrategy[int], most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Answers one by one, and storms of the same answer."""
    once = st.lists(answers, max_size=most)
    storms = st.lists(st.tuples(answers, st.integers(1, 40)), max_size=3).map(
        lambda runs: [answer for answer, count in runs for _ in range(count)]
    )
    return st.one_of(once, storms).map(tuple)


def _minus(errnos: st.SearchStrategy[int]) -> st.SearchStrategy[int]:
    return errnos.map(lambda number: -number)


_transient = _minus(st.sampled_from(TRANSIENT))
_final = _minus(st.sampled_from(FINAL))
_any_errno = _minus(st.one_of(st.sampled_from(REFUSALS + FINAL), st.integers(1, 133)))
_usual_bytes = st.just(ALL_BYTES)
_cut = st.one_of(
    st.sampled_from([1, 511, 512, 513, 4095, 4096, 4097, 8192, 65536]), st.integers(1, 300_000)
)
_gentle = st.one_of(_usual_bytes, _cut, _transient)
_rough = st.one_of(_usual_bytes, _cut, _transient, _any_errno, st.just(0))
_fates = st.one_of(_runs(_gentle, 40), _runs(_rough, 40))
_take = st.one_of(st.just(ALL_TRANSFERS), st.integers(0, 5))
SUBMITS = st.one_of(
    _runs(st.one_of(_take, _transient), 30),
    _runs(st.one_of(_take, _transient, _final), 30),
)
_reaps = _runs(st.one_of(st.sampled_from([AS_USUAL, SPURIOUS]), _transient), 30)
_holds = _runs(st.one_of(st.integers(0, 6), st.just(1000)), 40)
_registers = _runs(st.sampled_from([0, -errno.ENOMEM, -errno.EOPNOTSUPP, -errno.EFAULT]), 4)

_seldom = st.sampled_from([False, False, False, True])

ENGINE_SCHEDULES = st.builds(
    Schedule,
    submits=SUBMITS,
    reaps=_reaps,
    fates=_fates,
    holds=_holds,
    registers=_registers,
    refuse_direct=_seldom,
    refuse_fixed=_seldom,
)


def _call_faults(
    names: tuple[str, ...],
) -> st.SearchStrategy[tuple[tuple[str, int, int, int], ...]]:
    errnos = (errno.EIO, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.EMFILE, errno.EINVAL)
    one = st.tuples(
        st.sampled_from(names),
        st.integers(0, 12),
        st.sampled_from([1, 1, 2, 20, ALL_CALLS]),
        st.sampled_from((*errnos, errno.ENOSPC, errno.EACCES)),
    )
    return st.lists(one, min_size=1, max_size=4).map(tuple)


# A call that fails for ever with EINTR is a kernel that cannot be: whoever restarts it never ends.
# An engine that never again says what is done keeps its memory: see test_fault_dead_engine.
def _can_end(schedule: Schedule) -> bool:
    return not any(
        count == ALL_CALLS and (error in (errno.EINTR, errno.EAGAIN) or call in REAP_CALLS)
        for call, _, count, error in schedule.calls
    )


CALL_SCHEDULES = st.one_of(
    st.builds(
        Schedule,
        calls=_call_faults(CALLS + TRANSFER_CALLS + ENGINE_CALLS),
        engines=st.just(False),
    ),
    st.builds(
        Schedule,
        calls=_call_faults(CALLS + TRANSFER_CALLS),
        fates=_fates,
        submits=SUBMITS,
        refuse_direct=st.booleans(),
    ),
).filter(_can_end)


def injected_errnos(report: dict[str, Any]) -> set[int]:
    """The errnos that an operation may fail with after what was injected, and how."""
    found = {error for _, error in report["failed_calls"]}
    if any(call in ("mmap", "madvise") for call, _ in report["failed_calls"]):
        found.add(errno.ENOMEM)  # what is said of staging blocks
    for met in report["transfers"]:
        if met["result"] == 0:
            found.add(errno.EIO if met["write"] else errno.ENODATA)
        elif met["result"] < 0:
            found.add(-met["result"])
    return found
