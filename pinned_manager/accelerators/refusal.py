"""The word that a device refused host memory: once in a process, since it is rarely alone."""

from __future__ import annotations

import logging

logger = logging.getLogger("pinned_manager")

_said: set[str] = set()  # added to by one operation: safe in threads


def report_refused_registration(call: str, nbytes: int, reason: str) -> None:
    """Log, the first time, that ``call`` failed for ``nbytes`` bytes, and what to do about it."""
    if "registration" in _said:
        return
    _said.add("registration")
    logger.warning(
        "%s of %d bytes failed: %s. The memory stays page-locked, but copies to and from the "
        "device are slower. See the driver's log and its limits on registered memory, or set "
        "DS_PIN_MEMORY_REGISTER_DEVICE=0 to do without. This is said once.",
        call,
        nbytes,
        reason,
    )


def report_refused_unregistration(call: str, reason: str) -> None:
    """Log, the first time, that a registration could not be taken back."""
    if "unregistration" in _said:
        return
    _said.add("unregistration")
    logger.warning(
        "%s failed: %s. The memory stays locked and mapped until the process ends, since the "
        "device may still reach it. Look for an earlier error of the device. This is said once.",
        call,
        reason,
    )
