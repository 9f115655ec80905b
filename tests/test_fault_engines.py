"""Whatever an engine answers, each operation is done or says why not, and nothing else changes.

Guards against lost, repeated and misattributed operations, bytes outside of a target, errors that
are dropped or invented, and what a handle keeps after trouble (A-11, A-12, F-07).
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.faulty_example import Example, Report, examples_with, run_example
from support.faulty_schedules import ENGINE_SCHEDULES, PHASES, TRANSIENT, Schedule
from support.faulty_workload import DRAWS, Draw, Operation, Workload
from support.sanitizers import examples

pytest_plugins = ["support.faulty_process"]

EXAMPLES = examples(100)
SHORT_EXAMPLES = examples(40)


@settings(max_examples=EXAMPLES, phases=PHASES)
@given(example=examples_with(ENGINE_SCHEDULES))
def test_every_answer_of_an_engine(directory: Path, backend: str, example: Example) -> None:
    run_example(directory, backend, example, exactly_those_that_met_an_error)


@settings(max_examples=SHORT_EXAMPLES, phases=PHASES)
@given(
    block_size=st.sampled_from([16384, 1 << 20]),
    draw=DRAWS,
    cuts=st.lists(st.integers(4096, 300_000), min_size=1, max_size=3),
    error=st.sampled_from([errno.EIO, errno.EFAULT, errno.EINVAL]),
)
def test_error_after_a_part_has_moved(
    directory: Path, backend: str, block_size: int, draw: Draw, cuts: list[int], error: int
) -> None:
    # One transfer at a time: what follows a short one is the rest of it.
    options = {"queue_depth": 1, "block_size": block_size}
    example = Example(options, Schedule(fates=(*cuts, -error)), [draw])
    run_example(directory, backend, example, done_up_to_the_error)


def exactly_those_that_met_an_error(workload: Workload, report: Report) -> None:
    """An operation fails when, and only when, an error met one of its transfers: with its errno."""
    refused: set[str] = set()  # files that went through the page cache from then on
    met: dict[Operation, list[tuple[int, bool]]] = {one: [] for one in workload.operations}
    for transfer in report["transfers"]:
        answer = what_becomes_of(transfer, transfer["path"] in refused)
        if transfer["direct"] and -transfer["result"] in (errno.EINVAL, errno.EOPNOTSUPP):
            refused.add(transfer["path"])
        if answer is not None:
            met[operation_of(transfer, workload)].append(answer)
    for operation, answers in met.items():
        if operation.error is None:
            assert not any(certain for _, certain in answers), f"{operation.draw} met {answers}"
        else:
            assert operation.error.errno in {number for number, _ in answers}


def done_up_to_the_error(workload: Workload, report: Report) -> None:
    """What a failure says was moved is all that was, where transfers follow one another."""
    exactly_those_that_met_an_error(workload, report)
    for operation in workload.operations:
        # A small synchronous request goes on to its next transfers before it looks at the first.
        if operation.error is not None and operation.draw.how != "sync":
            before = report["transfers"][-1]["offset"] - operation.offset
            # Bytes that a read left in a staging block have not arrived.
            assert operation.error.nbytes_done == min(before, operation.arrived)


def what_becomes_of(transfer: dict[str, Any], refused: bool) -> tuple[int, bool] | None:
    """The errno that this fault ends its operation with, and whether it must; None: it goes on."""
    result: int = transfer["result"]
    if result == 0:
        return (errno.EIO if transfer["write"] else errno.ENODATA), True
    if result > 0 or -result in TRANSIENT:
        return None
    number = -result
    if number in (errno.EINVAL, errno.EOPNOTSUPP) and transfer["direct"]:
        return None  # again through the page cache
    if number in (errno.EFAULT, errno.EOPNOTSUPP) and transfer["fixed"]:
        return None  # again without the registered buffer
    # The transfer may have been meant to be direct when the file was refused.
    return number, not (number in (errno.EINVAL, errno.EOPNOTSUPP) and refused)


def operation_of(transfer: dict[str, Any], workload: Workload) -> Operation:
    """The one operation to whose bytes the transfer belongs."""
    (found,) = (
        one
        for one in workload.operations
        if str(one.path) == transfer["path"]
        and one.draw.write is transfer["write"]
        and one.offset <= transfer["offset"]
        and transfer["offset"] + transfer["nbytes"] <= one.end
    )
    return found
