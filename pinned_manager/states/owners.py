"""What has been moved of each target, and who may touch it.

One move of a target runs at a time. What a target has moved goes with its optimizer: pages are
unlocked and files vanish when that is dropped. A forked child owns nothing of its parent's.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pinned_manager.states.collect import Optimizer, Part, collect
from pinned_manager.states.guards import Guards
from pinned_manager.states.interrupts import deferred_signals
from pinned_manager.states.moved_storage import MovedStorage


class Owner:
    """The moved storages of one optimizer, and what was given with it."""

    def __init__(self) -> None:
        self.storages: list[MovedStorage] = []
        self.guards = Guards(weakref.ref(self))
        self._process = os.getpid()
        self.renew_lock()

    def renew_lock(self) -> None:
        """Nobody moves anything."""
        self._lock = threading.Lock()
        self._thread: int | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Within it, this thread alone moves something, and only once."""
        if self._thread == threading.get_ident():
            raise RuntimeError(
                "states of this target are being moved by this very thread, which a signal handler "
                "has interrupted; move them when that is over"
            )
        with self._lock:
            self._thread = threading.get_ident()
            try:
                yield
            finally:
                self._thread = None

    @property
    def is_inherited(self) -> bool:
        """True in a forked child, for what its parent has moved."""
        return bool(self.storages) and self._process != os.getpid()

    def require_own_process(self) -> None:
        """RuntimeError in a forked child, which has neither the file nor the whole picture."""
        if self.is_inherited:
            raise RuntimeError(
                f"the states were offloaded by process {self._process}, and this is its forked "
                f"child {os.getpid()}; reload them before forking, or release() them here"
            )

    def add(self, storages: list[MovedStorage]) -> None:
        """Own storages from now on, as this process."""
        self.storages += storages
        self._process = os.getpid()

    def forget(self) -> None:
        """Drop what is at home or has no tensors any more."""
        self.storages = [
            storage for storage in self.storages if storage.place is not None and storage.tensors()
        ]


# Guards _owners, and which storage is whose. Taken after an owner's turn. A signal handler may come
# in while it is held.
_lock = threading.RLock()
_owners: weakref.WeakKeyDictionary[Optimizer, Owner] = weakref.WeakKeyDictionary()


@contextmanager
def moving(optimizer: Optimizer, others: Iterable[Part]) -> Iterator[Owner]:
    """Within it, this thread alone moves states of the target."""
    with _lock:
        owner = _owners.setdefault(optimizer, Owner())
    with owner.turn():
        with _lock:
            owner.forget()  # what an interrupt has left here
        try:
            yield owner
        finally:
            with _lock:
                owner.forget()
            owner.guards.update(optimizer, others)


def claim(owner: Owner, optimizer: Optimizer, others: Iterable[Part]) -> None:
    """Add the storages of a target that are at home, unless another target has moved them."""
    with deferred_signals(), _lock:
        taken = {
            id(tensor)
            for other in _owners.values()
            for storage in other.storages
            for tensor in storage.tensors()
        }
        owner.add(
            [
                storage
                for storage in collect(optimizer, others)
                if not any(id(tensor) in taken for tensor in storage.tensors())
            ]
        )


def _renew_locks() -> None:
    """In a forked child: threads that held a lock are not here to release it."""
    global _lock
    _lock = threading.RLock()
    for owner in _owners.values():
        owner.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)
