"""The bytes of a fuzzer as a row of decisions, as draws.h has it; 0 once they are used up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    def __init__(self, data: bytes) -> None:
        self._left = memoryview(data)

    def __bool__(self) -> bool:
        return len(self._left) > 0

    def bytes(self, count: int) -> bytes:
        """As many as there are, of `count`."""
        taken, self._left = self._left[:count], self._left[count:]
        return bytes(taken)

    def rest(self) -> bytes:
        return self.bytes(len(self._left))

    def text(self) -> str:
        """The rest, as the command line and the environment would hold it."""
        return self.rest().decode("utf-8", "surrogateescape")

    def below(self, limit: int) -> int:
        width = ((limit - 1).bit_length() + 7) // 8
        return int.from_bytes(self.bytes(width), "big") % limit

    def of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def signed(self) -> int:
        """Of any size up to 9 bytes; often just beside a power of two."""
        if self.below(2):
            return (1 << self.below(72)) * self.of((1, -1)) + self.below(5) - 2
        return int.from_bytes(self.bytes(self.below(10)), "big", signed=True)
