"""Registration of page-locked memory with the accelerator, which can then copy to and from it
directly.

Each locked mapping of the registry is registered once, after it is locked, and stays registered
while it is cached. Who calls what, and when, is in csrc/python/device_hooks.h; what is done, here:

1. wanted() is asked before anything is locked: a wrong setting is an error with nothing done.
2. register() goes in chunks, all or nothing: when one fails the earlier ones are undone.
3. unregister() answers True only when the device reaches none of the pages any more. The registry
   keeps the memory locked and mapped otherwise.
4. No lock is held while the accelerator runs or something is logged: a finalizer may come here in
   the middle of either.
5. In a forked child nothing is registered, and the parent's runtime is left alone.
"""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass, field

from _deepnvme import pin as _pin
from pinned_manager.accelerators import Accelerator, get_accelerator
from pinned_manager.accelerators.refusal import (
    report_refused_registration,
    report_refused_unregistration,
)
from pinned_manager.switches import parse_switch

# One cudaHostRegister of 512 GiB or more fails with NVIDIA drivers from R580 on, whose table of 16
# bytes for each page of 4 KiB may not exceed INT_MAX bytes:
# https://github.com/NVIDIA/open-gpu-kernel-modules/pull/1234
# Not much smaller, since some copies may not cross from one registration to the next.
CHUNK_BYTES = 256 << 30


def registration_enabled() -> bool:
    """What DS_PIN_MEMORY_REGISTER_DEVICE says, in any case; True when it is unset.

    Raises ValueError for any other value.
    """
    value = os.environ.get("DS_PIN_MEMORY_REGISTER_DEVICE", "")
    return parse_switch("DS_PIN_MEMORY_REGISTER_DEVICE", value)


@dataclass
class _Registration:
    """One range, and the chunks of it that the device reaches."""

    accelerator: Accelerator
    nbytes: int
    chunks: list[int] = field(default_factory=list)  # their addresses
    complete: bool = False


class _Registrations:
    """Ranges by address."""

    def __init__(self) -> None:
        self._entries: dict[int, _Registration] = {}

    def register(self, address: int, nbytes: int) -> bool:
        """True once all of it is registered, also by an earlier call."""
        entry = _Registration(get_accelerator(), nbytes)
        known = self._entries.setdefault(address, entry)
        if known is not entry:
            if known.complete and known.nbytes == nbytes:
                return True
            raise ValueError(
                f"memory at {address:#x} is registered already, {known.nbytes} bytes of it, or "
                "about to be; unregister it first"
            )
        try:
            entry.complete = all(
                _register_chunk(entry, start, min(CHUNK_BYTES, address + nbytes - start))
                for start in range(address, address + nbytes, CHUNK_BYTES)
            )
        finally:
            if not entry.complete:
                self.unregister(address)
        return entry.complete

    def unregister(self, address: int) -> bool | None:
        """True when the device reaches nothing of it any more; None when it was not registered."""
        entry = self._entries.get(address)
        if entry is None:
            return None
        while entry.chunks:
            if not _unregister_chunk(entry.accelerator, entry.chunks[-1]):
                return False
            entry.chunks.pop()
        self._entries.pop(address, None)
        return True

    def reaches(self, address: int) -> bool:
        """Whether any part of the range is registered."""
        return address in self._entries

    def any(self) -> bool:
        return bool(self._entries)


def _register_chunk(entry: _Registration, start: int, nbytes: int) -> bool:
    try:
        done = entry.accelerator.register_host_memory(start, nbytes)
    except Exception as error:  # of a runtime: memory that is only page-locked serves as well
        done, reason = False, str(error)
    else:
        reason = f"{entry.accelerator.name} refused it"
    if done:
        entry.chunks.append(start)
    else:
        report_refused_registration("register_host_memory", nbytes, reason)
    return done


def _unregister_chunk(accelerator: Accelerator, start: int) -> bool:
    try:
        done = accelerator.unregister_host_memory(start)
    except Exception as error:  # the device may reach it still: the caller keeps the memory
        done, reason = False, str(error)
    else:
        reason = f"{accelerator.name} refused it"
    if not done:
        report_refused_unregistration("unregister_host_memory", reason)
    return done


class _MappingRegistrar:
    """What the registry asks, through csrc/python/device_hooks."""

    def __init__(self, belongs_to_parent: bool = False) -> None:
        self.belongs_to_parent = belongs_to_parent  # the accelerator's runtime
        self.registrations = _Registrations()

    def wanted(self) -> bool:
        """Whether mappings are to be offered. Raises ValueError for a wrong setting."""
        enabled = registration_enabled()
        return enabled and not self.belongs_to_parent and get_accelerator().can_register()

    def register(self, address: int, nbytes: int) -> bool:
        """True when the device may reach any of it."""
        done = self.registrations.register(address, nbytes)
        return done or self.registrations.reaches(address)  # a rollback may fail

    def unregister(self, address: int) -> bool:
        """True when the device reaches none of it."""
        return self.registrations.unregister(address) is not False


def register_host_memory(address: int, nbytes: int) -> bool:
    """Register page-locked memory of your own with the accelerator: ``nbytes`` bytes at `address`.

    True when the device copies directly to and from it now. False when it does not: there is no
    accelerator, it refused, or DS_PIN_MEMORY_REGISTER_DEVICE turns it off. Unregister it before you
    free or unlock it. Pinned tensors of this library need no call.

    Raises ValueError for a range that cannot be, that is misaligned for the accelerator, or that is
    registered with another size.
    """
    address, nbytes = operator.index(address), operator.index(nbytes)
    if address <= 0 or nbytes <= 0:
        raise ValueError(f"{nbytes} bytes at address {address} are no memory")
    alignment = get_accelerator().pin_memory_alignment()
    if address % alignment or nbytes % alignment:
        raise ValueError(
            f"address {address:#x} and size {nbytes} must divide by {alignment} bytes on "
            f"{get_accelerator().name}"
        )
    return _registrar.wanted() and _users.register(address, nbytes)


def unregister_host_memory(address: int) -> bool:
    """Take back register_host_memory(). False when nothing was registered there by it, or when the
    accelerator refuses: then the device may still reach the memory, which must stay.
    """
    return _users.unregister(operator.index(address)) is True


_registrar = _MappingRegistrar()
_users = _Registrations()
_pin.set_registrar(_registrar)


def _restart_in_child() -> None:
    """The runtime of the parent, if it was used, cannot be used here; its memory is not ours."""
    global _registrar, _users
    used = _registrar.registrations.any() or _users.any()
    _registrar = _MappingRegistrar(used or _registrar.belongs_to_parent)
    _users = _Registrations()
    _pin.set_registrar(_registrar)


os.register_at_fork(after_in_child=_restart_in_child)
