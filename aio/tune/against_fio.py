"""The best options against fio, in the same minutes and on the same files."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aio.measure import fio
from aio.measure.harness import BenchError, Sample
from aio.tune.search import Rounds
from aio.tune.session import Deadline, Findings
from aio.tune.workload import Workload

ROUNDS = 5
LEAST_SECONDS = 0.2  # of a run: fio's clock has milliseconds


@dataclass(frozen=True)
class Comparison:
    """One direction: bytes and processor seconds for each byte, medians of runs in turn."""

    engine: str
    ours: float  # bytes per second
    fio: float
    ours_cpu: float
    fio_cpu: float
    rounds: int


def compare(
    work: Workload, findings: Findings, deadline: Deadline
) -> tuple[dict[str, Comparison], str]:
    """By direction, and why one is missing; as many rounds as there is time for, up to five.

    fio gets the same block size, and by one job as many transfers in flight as the best options
    have with all workers.
    """
    if fio.version() is None:
        return {}, "fio is not installed: apt-get install fio"
    found: dict[str, Comparison] = {}
    for index, direction in enumerate(findings.best):
        try:
            part = deadline.part(1 / (len(findings.best) - index))
            found[direction] = _one(work, findings, direction, part)
        except BenchError as error:
            return found, str(error)
    return found, ""


def _one(work: Workload, findings: Findings, direction: str, deadline: Deadline) -> Comparison:
    options = findings.best[direction]
    engine = "libaio" if options.backend == "libaio" else "io_uring fixed"
    block = min(options.block_size, work.nbytes)
    nbytes = work.nbytes // block * block * len(work.paths())  # fio moves whole blocks
    seconds = nbytes / findings.bytes_per_second(direction, options)
    passes = max(work.loops, math.ceil(LEAST_SECONDS / seconds))
    job = fio.Job(
        direction,
        (f"--filename={':'.join(work.paths())}", f"--size={nbytes}"),
        nbytes,
        block_size=str(block),
        depth=min(options.queue_depth * options.intra_op_parallelism, -(-nbytes // block)),
        mode="direct",
        passes=passes,
        kernel_workers=work.in_memory,
    )
    runner = fio.Runner([job], engine)
    runner.warm_up()

    def measure(who: str) -> Sample:
        return runner() if who == "fio" else work.run(direction, options, passes)

    rounds = Rounds(["ours", "fio"], measure, deadline.passed)
    while rounds.completed < ROUNDS and rounds.run(rounds.entries):
        pass
    if rounds.completed == 0:
        raise BenchError("there was no time left for fio: see --time")
    ours, other = rounds.entries
    return Comparison(
        engine,
        ours.bytes_per_second,
        other.bytes_per_second,
        ours.cpu_per_byte,
        other.cpu_per_byte,
        rounds.completed,
    )
