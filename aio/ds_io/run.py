"""A run: room looked for, folders made, loops in turn with fio, everything given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

from tqdm import tqdm

from aio.ds_io.fio_side import FioSide
from aio.ds_io.options import FAST, Options
from aio.ds_io.worker import Part, Team, open_team
from aio.measure.files import work_folder
from aio.measure.harness import Contestant, Sample, Series, run_rounds
from aio.measure.room import check_disk, check_memory
from aio.measure.transfers import in_words


@dataclass(frozen=True)
class Loop:
    """One loop of all processes; `counted` unless it was for warming up."""

    counted: bool
    parts: list[Part]

    @property
    def seconds(self) -> float:
        """From the first start to the last end."""
        return max(part.end for part in self.parts) - min(part.start for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes completed."""
        return sum(part.nbytes for part in self.parts)

    @property
    def moved(self) -> dict[str, int]:
        """Bytes by path."""
        total: Counter[str] = Counter()
        for part in self.parts:
            total.update(part.moved)
        return dict(total)


@dataclass
class Outcome:
    """Everything that a run found; `fio` is its side and both series where it took part."""

    options: Options
    loops: list[Loop] = field(default_factory=list)
    fio: FioSide | None = None
    series: dict[str, Series] = field(default_factory=dict)

    @property
    def counted(self) -> list[Loop]:
        return [loop for loop in self.loops if loop.counted]


def measure(options: Options) -> Outcome:
    """Do all loops. Raises BenchError, OSError, MemoryError, ValueError or RuntimeError."""
    _check_room(options)
    _check_memory(options)
    outcome = Outcome(options)
    with ExitStack() as stack:
        made = [work_folder(folder.absolute(), "ds_io-") for folder in options.folders]
        folders = [stack.enter_context(folder) for folder in made]
        team = stack.enter_context(closing(open_team(options, folders)))
        bar = stack.enter_context(_progress(options))
        ours = _Ours(outcome, team, bar)
        contestants = [Contestant("ds_io", ours.run, warm_up=ours.warm_up)]
        if options.fio:
            outcome.fio = FioSide(options, folders)
            contestants.append(Contestant("fio", outcome.fio.run, warm_up=outcome.fio.warm_up))
        outcome.series = run_rounds(contestants, options.loops)
    return outcome


class _Ours:
    """Our side of the comparison: loop after loop."""

    def __init__(self, outcome: Outcome, team: Team, bar: tqdm[object]) -> None:
        self._outcome = outcome
        self._team = team
        self._bar = bar

    def warm_up(self) -> None:
        for _ in range(self._outcome.options.warmup_loops):
            self._loop(self._outcome.options.include_warmup_time)

    def run(self) -> Sample:
        loop = self._loop(True)
        cpu = sum(part.cpu_seconds for part in loop.parts)
        return Sample(loop.seconds, loop.nbytes, cpu, len(loop.parts), in_words(loop.moved))

    def _loop(self, counted: bool) -> Loop:
        loop = Loop(counted, self._team.loop(len(self._outcome.loops)))
        self._outcome.loops.append(loop)
        self._bar.update()
        return loop


@contextmanager
def _progress(options: Options) -> Iterator[tqdm[object]]:
    """A bar on standard error, where that is a terminal."""
    total = options.total_loops
    with tqdm(total=total, desc=options.direction, unit="loop", leave=False, disable=None) as bar:
        yield bar


def _check_room(options: Options) -> None:
    """Raise BenchError where a file system has too little room for the files."""
    each = options.io_size * (options.files + options.fio)
    check_disk((folder, each) for folder in options.folders)


def _check_memory(options: Options) -> None:
    """Raise BenchError where the tensors are larger than the memory that is left."""
    each = 0 if options.gpu and not options.slow_bounce_buffer else options.io_size
    if options.serializes:  # torch.load makes its own tensor, torch.save may copy
        each += options.io_size
    if options.engine == FAST:
        each += options.fast_io_size
    check_memory(each * len(options.folders))
