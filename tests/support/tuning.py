"""A drive for the tuner that is a formula, and a clock that only its runs move."""

from __future__ import annotations

from collections.abc import Callable

from aio.measure.harness import Sample
from aio.options import HandleOptions

Rate = Callable[[str, HandleOptions], float]


class Clock:
    """Seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeDrive:
    """Work of the tuner: bytes per second by direction and options, CPU seconds per byte."""

    def __init__(
        self,
        rate: Rate,
        *,
        cpu: Rate = lambda direction, options: 0.0,
        nbytes: int = 400 << 20,
        overhead: float = 0.01,
    ) -> None:
        self.nbytes = nbytes
        self.clock = Clock()
        self.runs: list[tuple[str, HandleOptions, float, float]] = []  # and when from and to
        self._rate, self._cpu = rate, cpu
        self._overhead = overhead

    def resize(self, nbytes: int) -> None:
        assert 0 < nbytes <= self.nbytes
        self.nbytes = nbytes

    def run(self, direction: str, options: HandleOptions) -> Sample:
        start = self.clock.now
        seconds = self.nbytes / self._rate(direction, options)
        self.clock.now += seconds + self._overhead
        self.runs.append((direction, options, start, self.clock.now))
        return Sample(seconds, self.nbytes, self._cpu(direction, options) * self.nbytes)
