"""fio as a contestant: the same block size, depth and files, and its own account of the run."""

from __future__ import annotations

import dataclasses
import json
import resource
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aio.measure.harness import BenchError, Contestant, Sample, Series, fastest

ENGINES: dict[str, tuple[str, ...]] = {
    "libaio": ("--ioengine=libaio",),
    "io_uring": ("--ioengine=io_uring",),
    "io_uring fixed": ("--ioengine=io_uring", "--fixedbufs=1", "--iomem=mmap"),
}

# Off: what fio does and the others do not (drop caches, advise, sample the disk, change its buffers
# before each write).
QUIET = ("--invalidate=0", "--fadvise_hint=0", "--disk_util=0", "--scramble_buffers=0")


@dataclass(frozen=True)
class Job:
    """One fio job; `arguments` select the files and the sizes."""

    direction: str  # "read", "write" or "rw"
    arguments: tuple[str, ...]
    nbytes: int  # what must complete in one pass, or the sample is refused
    block_size: str = "1M"
    depth: int = 32
    mode: str = "direct"
    tolerance: float = 0.0  # of nbytes: mixed block sizes do not add up to exactly the size asked
    passes: int = 1
    kernel_workers: bool = False  # whether the kernel may move the bytes in threads of its own


def version() -> str | None:
    """The version line of the fio on PATH; None where there is none."""
    program = shutil.which("fio")
    if program is None:
        return None
    return subprocess.run([program, "--version"], capture_output=True, text=True).stdout.strip()


def one_file(path: Path, nbytes: int) -> tuple[str, ...]:
    """Arguments for one existing file."""
    return (f"--filename={path}", f"--size={nbytes}")


def command(jobs: Sequence[Job], engine: str) -> list[str]:
    """The command line of jobs that run at the same time on one of `ENGINES`."""
    line = ["fio", "--output-format=json"]
    for number, job in enumerate(jobs):
        blocks = [] if "bssplit" in " ".join(job.arguments) else [f"--bs={job.block_size}"]
        loops = [f"--loops={job.passes}"] if job.passes > 1 else []
        line += [
            f"--name=job{number}", "--direct=1", "--allow_file_create=0",
            f"--rw={job.direction}", f"--iodepth={job.depth}",
            *blocks, *loops, *QUIET, *ENGINES[engine], *job.arguments,
        ]  # fmt: skip
    return line


class Runner:
    """Runs jobs, usually one, at the same time on one engine.

    fio reports the processor time of its own thread. Where the kernel hands io_uring's requests to
    worker threads, as it does on tmpfs, that leaves out nearly all of it; for such a job the time
    is that of the whole process, less that of a run that moves a single block.
    """

    def __init__(self, jobs: Sequence[Job], engine: str) -> None:
        self._jobs = jobs
        self._engine = engine
        self._idle_cpu = 0.0

    def warm_up(self) -> None:
        """Learn what starting and ending costs, where it is needed."""
        if any(job.kernel_workers for job in self._jobs):
            jobs = [
                dataclasses.replace(job, arguments=(*job.arguments, "--number_ios=1"))
                for job in self._jobs
            ]
            line = command(jobs, self._engine)
            self._idle_cpu = min(_start(line)[1] for _ in range(2))

    def __call__(self) -> Sample:
        """One run. Raises BenchError for any error, short transfer or missing byte."""
        reports, cpu = _start(command(self._jobs, self._engine))
        samples = [parse(*pair) for pair in zip(reports, self._jobs, strict=True)]
        sample = _together(samples)
        if any(job.kernel_workers for job in self._jobs):
            sample = dataclasses.replace(sample, cpu_seconds=max(cpu - self._idle_cpu, 0.0))
        return sample


def _together(samples: Sequence[Sample]) -> Sample:
    """Jobs that ran at the same time: they took as long as the longest."""
    return dataclasses.replace(
        max(samples, key=lambda sample: sample.seconds),
        nbytes=sum(sample.nbytes for sample in samples),
        cpu_seconds=sum(sample.cpu_seconds for sample in samples),
        operations=sum(sample.operations for sample in samples),
    )


def _start(line: list[str]) -> tuple[list[dict[str, Any]], float]:
    """Run fio: its report on each job, and the processor seconds of the whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(line, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0 or "{" not in done.stdout:
        words = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise BenchError(f"fio failed ({done.returncode}): {words[-1]}: {' '.join(line)}")
    reports = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return reports, cpu


def parse(report: dict[str, Any], job: Job) -> Sample:
    """One entry of fio's "jobs" as a Sample, once everything asked for is seen to be done."""
    sides = [report[side] for side in ("read", "write") if report[side]["total_ios"]]
    nbytes = sum(side["io_bytes"] for side in sides)
    expected = job.nbytes * job.passes
    if report["error"] or any(side["short_ios"] or side["drop_ios"] for side in sides):
        raise BenchError(f"fio reports error {report['error']} or short transfers")
    if abs(nbytes - expected) > job.tolerance * expected:
        raise BenchError(f"fio completed {nbytes} bytes of {expected}")
    # Each side's runtime is its own; a mixed job lasts as long as the longer one.
    seconds = max(side["runtime"] for side in sides) / 1e3
    if seconds == 0:
        raise BenchError("fio ran for less than its clock's millisecond: use a larger --size")
    share = (report["usr_cpu"] + report["sys_cpu"]) / 100
    largest = max(sides, key=lambda side: int(side["total_ios"]))
    percentiles = largest["clat_ns"].get("percentile", {})
    return Sample(
        seconds=seconds,
        nbytes=nbytes,
        cpu_seconds=share * report["job_runtime"] / 1e3,
        operations=sum(side["total_ios"] for side in sides),
        mode=job.mode,
        p50=_seconds(percentiles.get("50.000000")),
        p99=_seconds(percentiles.get("99.000000")),
    )


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds * 1e-9


def contestants(job: Job, attempts: int, quick: bool = False) -> list[Contestant]:
    """One contestant per engine; of `attempts` runs the better counts (fio can be bimodal)."""
    engines = list(ENGINES)[1:] if quick else list(ENGINES)

    runners = [(engine, Runner([job], engine)) for engine in engines]
    return [Contestant(f"fio {name}", run, attempts, run.warm_up) for name, run in runners]


def best(series: dict[str, Series], names: Sequence[str] = ()) -> Series:
    """The fastest of the fio contestants in a result: "best fio"."""
    chosen = names or [name for name in series if name.startswith("fio ")]
    return fastest([series[name] for name in chosen])
