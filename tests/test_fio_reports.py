"""A run of fio counts only if all that was asked for is done, in a time that its clock can tell."""

from __future__ import annotations

from typing import Any

import pytest

from aio.measure import fio
from aio.measure.harness import BenchError

NBYTES = 8 << 20
JOB = fio.Job("read", ("--filename=file",), NBYTES, passes=2)


def side(nbytes: int, milliseconds: int, **more: int) -> dict[str, Any]:
    """One direction of a job, as `fio --output-format=json` has it."""
    return {
        "io_bytes": nbytes,
        "total_ios": nbytes >> 20,
        "runtime": milliseconds,
        "short_ios": 0,
        "drop_ios": 0,
        "clat_ns": {"percentile": {"50.000000": 1_000_000, "99.000000": 3_000_000}},
        **more,
    }


def report(read: dict[str, Any], **more: Any) -> dict[str, Any]:
    write = side(0, 0)
    return {
        "read": read, "write": write, "error": 0,
        "usr_cpu": 10.0, "sys_cpu": 30.0, "job_runtime": 500, **more,
    }  # fmt: skip


def test_a_whole_run() -> None:
    found = fio.parse(report(side(2 * NBYTES, 250)), JOB)
    assert (found.nbytes, found.operations, found.seconds) == (2 * NBYTES, 16, 0.25)
    assert found.cpu_seconds == pytest.approx(0.2)  # 40 % of the time that the job was there
    assert (found.p50, found.p99) == pytest.approx((1e-3, 3e-3))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (report(side(2 * NBYTES, 250), error=5), "error 5"),
        (report(side(2 * NBYTES, 250, short_ios=1)), "short transfers"),
        (report(side(2 * NBYTES, 250, drop_ios=1)), "short transfers"),
        (report(side(NBYTES, 250)), f"{NBYTES} bytes of {2 * NBYTES}"),
        (report(side(2 * NBYTES + 1, 250)), f"{2 * NBYTES + 1} bytes of {2 * NBYTES}"),
        (report(side(0, 0)), f"0 bytes of {2 * NBYTES}"),
        (report(side(2 * NBYTES, 0)), "use a larger --size"),
    ],
)
def test_what_is_no_figure(found: dict[str, Any], words: str) -> None:
    with pytest.raises(BenchError, match=words):
        fio.parse(found, JOB)


def test_mixed_sizes_need_not_add_up() -> None:
    job = fio.Job("read", ("--bssplit=4k/50:1m/50",), NBYTES, tolerance=0.01)
    assert fio.parse(report(side(NBYTES + 4096, 250)), job).nbytes == NBYTES + 4096
    with pytest.raises(BenchError, match="bytes of"):
        fio.parse(report(side(NBYTES - (1 << 20), 250)), job)
