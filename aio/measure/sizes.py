"""Numbers of bytes as a user types them ("400M", "1G") and as one reads them."""

from __future__ import annotations

import re

GIB = 1 << 30  # what DeepSpeed's commands call a GB
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
MOST = (1 << 63) - 1  # of off_t


def parse_size(text: str) -> int:
    """Bytes of "4096", "64K", "400M", "1G" or "2T", in either case; units of 1024.

    "KiB" and "KB" are the same as "K". Raises ValueError for anything else, zero, and more bytes
    than a file can have.
    """
    match = re.fullmatch(r"([0-9]+)(?:([KMGT])(?:i?B)?|B)?", text.strip(), re.IGNORECASE)
    # At most as many digits as MOST has: int() refuses thousands of them with an error of its own.
    if match is None or len(match[1].lstrip("0")) > len(str(MOST)):
        raise ValueError(f"{text!r} is no size: give a number of bytes such as 4096, 400M or 1G")
    nbytes = int(match[1].lstrip("0") or "0") << _UNITS[(match[2] or "").upper()]
    if not 0 < nbytes <= MOST:
        raise ValueError(f"{text!r} is {nbytes} bytes: give a size from 1 to {MOST}")
    return nbytes


def format_size(nbytes: float) -> str:
    """ "400 MiB", "1.5 GiB", "17 bytes"."""
    value = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:g} {unit}" if value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
