"""Checksums of what goes to the files, by libraries that let go of the GIL while they compute.

xxh3: ``xxhash``, 64 bits. crc32c: ``crc32c``, by the processor's own instruction; it is kept by
others than Google's wheel, which holds the GIL all the while. Both are optional.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from aio.swap.errors import ChecksumError

# A mismatch names a part of this size; every part has a checksum of its own.
UNIT_BYTES = 16 << 20

_LIBRARIES = {"xxh3": ("xxhash", "xxh3_64_intdigest"), "crc32c": ("crc32c", "crc32c")}


class Checksums:
    """One kind of checksum."""

    def __init__(self, kind: str) -> None:
        """ValueError for an unknown kind, ImportError where its library is not installed."""
        if kind not in _LIBRARIES:
            known = ", ".join(map(repr, _LIBRARIES))
            raise ValueError(f"checksum is {kind!r}, but must be None or one of {known}")
        module, function = _LIBRARIES[kind]
        try:
            library = importlib.import_module(module)
        except ImportError as error:
            raise ImportError(
                f"checksum={kind!r} needs the package {module}: pip install {module}"
            ) from error
        self._kind = kind
        self._digest: Callable[[Any], int] = getattr(library, function)

    def of(self, octets: torch.Tensor) -> list[int]:
        """One for each UNIT_BYTES of a row of bytes."""
        return [self._digest(part.cpu().numpy()) for part in _units(octets)]

    def verify(self, octets: torch.Tensor, expected: list[int], filename: str, offset: int) -> None:
        """ChecksumError for the first part that differs; the row lies at ``offset`` of the file."""
        for part, wanted in zip(_units(octets), expected, strict=True):
            actual = self._digest(part.cpu().numpy())
            if actual != wanted:
                raise ChecksumError(filename, offset, part.nbytes, wanted, actual, self._kind)
            offset += part.nbytes


def _units(octets: torch.Tensor) -> list[torch.Tensor]:
    return [octets[at : at + UNIT_BYTES] for at in range(0, octets.numel(), UNIT_BYTES)]
