"""How much memory is pinned, by whom, and the most that ever was: live, in bytes.

What the registry holds is counted there, natively. What torch pinned, and what a caller reports by
track_pinned_memory(), is counted here.
"""

from __future__ import annotations

import collections
import contextvars
import logging
import operator
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypedDict

import torch

from _deepnvme import pin as _pin

logger = logging.getLogger("pinned_manager")

GB = 1 << 30  # as DeepSpeed has it
FIRST_MILESTONE = 32 * GB

_tag: contextvars.ContextVar[str] = contextvars.ContextVar("pinned_memory_tag")


class BackendStats(TypedDict):
    """One way in which memory was pinned."""

    live: int  # bytes pinned now
    peak: int  # the highest live
    regions: int  # pinned tensors now; not known of what is tracked
    calls: int  # pins so far


class PinnedMemoryStats(TypedDict):
    """Pinned memory of this process in bytes; native ones are rounded up to pages."""

    live: int  # pinned now, by all backends
    peak: int  # the highest live: exact with one backend, an upper bound with several
    cached: int  # locked for reuse, and the unused part of the mappings that small tensors share
    regions: int  # pinned tensors now
    calls: int  # pins so far
    by_backend: dict[str, BackendStats]  # "native", "torch", "tracked"
    by_tag: dict[str, int]  # live by owner


@contextmanager
def pinned_memory_tag(tag: str) -> Iterator[None]:
    """Within it, and in this thread or task, what is pinned is counted under ``tag``."""
    if not isinstance(tag, str):
        raise TypeError(f"the tag of pinned memory must be a str, not {type(tag).__name__}")
    token = _tag.set(tag)
    try:
        yield
    finally:
        _tag.reset(token)


def current_tag(default: str) -> str:
    """The tag of the innermost pinned_memory_tag, or ``default``."""
    return _tag.get(default)


class _Change(NamedTuple):
    backend: str
    tag: str
    nbytes: int  # negative when given back
    regions: int
    calls: int


class _Ledger:
    """Accounts of what the registry does not know.

    Changes are queued and applied by whoever looks: a finalizer may run in the middle of anything,
    so that it must not take a lock.
    """

    def __init__(self) -> None:
        self.by_backend: dict[str, BackendStats] = {"torch": _nothing(), "tracked": _nothing()}
        self.live: collections.Counter[tuple[str, str]] = collections.Counter()  # (backend, tag)
        self._changes: collections.deque[_Change] = collections.deque()
        self._lock = threading.RLock()
        self._settled = False  # or about to be

    def change(self, *change: Any) -> None:
        """Queue a _Change."""
        self._changes.append(_Change(*change))

    @contextmanager
    def settled(self) -> Iterator[bool]:
        """Within it nobody changes the accounts, and they are up to date.

        Unless it gives False, to a finalizer that runs in the middle of it.
        """
        with self._lock:
            if self._settled:
                yield False
                return
            self._settled = True
            try:
                while self._changes:
                    self._apply(self._changes.popleft())
                yield True
            finally:
                self._settled = False

    def _apply(self, change: _Change) -> None:
        account = self.by_backend[change.backend]
        account["live"] += change.nbytes
        account["peak"] = max(account["peak"], account["live"])
        account["regions"] += change.regions
        account["calls"] += change.calls
        self.live[change.backend, change.tag] += change.nbytes


def _nothing() -> BackendStats:
    return {"live": 0, "peak": 0, "regions": 0, "calls": 0}


class _Milestones:
    """An INFO line whenever pinned memory first reaches the next power of two, from 32 GB on."""

    def __init__(self, first: int = FIRST_MILESTONE) -> None:
        self._lock = threading.RLock()
        self._next = first
        self._room = first  # what may be pinned before another look can find anything

    def pinned(self, nbytes: int) -> None:
        """So much was pinned just now."""
        with self._lock:
            self._room -= nbytes
            if self._room > 0:
                return
            stats = pinned_memory_stats()
            reached = []
            while stats["live"] >= self._next:
                reached.append(self._next)
                self._next *= 2
            self._room = self._next - stats["live"]
        for milestone in reached:
            logger.info(
                "[pinned-memory checkpoint] crossed %s: %s pinned now, in %d calls so far",
                *(format_bytes(milestone), format_bytes(stats["live"]), stats["calls"]),
            )


_ledger = _Ledger()
_milestones = _Milestones()


def _restart_in_child() -> None:
    """After fork: nothing is pinned in the child, and no thread holds a lock there."""
    global _ledger, _milestones
    _ledger, _milestones = _Ledger(), _Milestones()


os.register_at_fork(after_in_child=_restart_in_child)


def note_native_pin(nbytes: int) -> None:
    """The registry pinned so much, which it counts itself."""
    _milestones.pinned(nbytes)


def note_torch_pin(tensor: torch.Tensor) -> None:
    """torch pinned this tensor: its storage counts until it goes."""
    storage = tensor.untyped_storage()
    tag, nbytes = current_tag("pin_memory"), storage.nbytes()
    _ledger.change("torch", tag, nbytes, 1, 1)
    finalizer: Any = weakref.finalize(storage, _ledger.change, "torch", tag, -nbytes, -1, 0)
    finalizer.atexit = False
    _milestones.pinned(nbytes)


def track_pinned_memory(num_bytes: int) -> None:
    """Count memory that something else has pinned, under the current tag, or ``tracked``.

    What this library pins, it counts itself. A negative number takes back what was given back.
    Raises ValueError when the tag does not have so much, TypeError for what is no number of bytes.
    """
    nbytes, tag = operator.index(num_bytes), current_tag("tracked")
    with _ledger.settled() as known:
        held = _ledger.live["tracked", tag]
        if known and held + nbytes < 0:
            raise ValueError(
                f"{-nbytes} bytes cannot be taken back from the tag {tag!r}, "
                f"which has {held} tracked; take back what was tracked under the same tag"
            )
        _ledger.change("tracked", tag, nbytes, 0, int(nbytes > 0))
    _milestones.pinned(nbytes)


def pinned_memory_stats() -> PinnedMemoryStats:
    """What is pinned in this process now, whoever pinned it, by backend and by tag."""
    native = _pin.stats()
    with _ledger.settled():
        others = {name: account.copy() for name, account in _ledger.by_backend.items()}
        by_tag = collections.Counter(native["by_tag"])
        for (_, tag), nbytes in _ledger.live.items():
            by_tag[tag] += nbytes
    by_backend: dict[str, BackendStats] = {
        "native": {
            "live": native["in_use"],
            "peak": native["peak"],
            "regions": native["regions"],
            "calls": native["calls"],
        },
        **others,
    }
    accounts = by_backend.values()
    return {
        "live": sum(account["live"] for account in accounts),
        "peak": sum(account["peak"] for account in accounts),
        "cached": native["cached"],
        "regions": sum(account["regions"] for account in accounts),
        "calls": sum(account["calls"] for account in accounts),
        "by_backend": by_backend,
        "by_tag": {tag: nbytes for tag, nbytes in by_tag.items() if nbytes},
    }


def pinned_memory_summary(tag: str = "") -> None:
    """Log one line at INFO with what is pinned now, to the logger ``pinned_manager``.

    ``tag`` is a label for the line, such as the moment: ``pinned_memory_summary("after init")``.
    """
    stats = pinned_memory_stats()
    logger.info(
        "[pinned-memory%s] %s pinned now, in %d calls so far; peak %s, cached %s",
        *(f" {tag}" if tag else "", format_bytes(stats["live"]), stats["calls"]),
        *(format_bytes(stats["peak"]), format_bytes(stats["cached"])),
    )


def format_bytes(nbytes: int) -> str:
    """Such as "1.50 MB", with units of 1024."""
    for unit, scale, digits in (("GB", GB, 3), ("MB", 1 << 20, 2), ("KB", 1 << 10, 1)):
        if abs(nbytes) >= scale:
            return f"{nbytes / scale:.{digits}f} {unit}"
    return f"{nbytes} B"
