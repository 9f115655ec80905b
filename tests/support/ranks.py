"""Two ranks over gloo, each a process, and what comes of the cases that they run."""

from __future__ import annotations

import gc
import json
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from support.child import TESTS
from support.counters import counters

RANKS = 2
HANG_S = 300  # what waits for a rank that is gone would do so for half an hour
Case = Callable[[Path], None]
CASES: dict[str, Case] = {}


def run_ranks(script: Path, directory: Path) -> list[dict[str, str]]:
    """Run a script as ranks 0 and 1. Returns what each has told about each case; the key ``""`` is
    what it wrote to standard error.
    """
    search = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    inherited = {**os.environ, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    inherited |= {"WORLD_SIZE": str(RANKS), "GLOO_SOCKET_IFNAME": "lo", "PYTHONFAULTHANDLER": "1"}
    outputs = [directory / f"stderr-{rank}" for rank in range(RANKS)]
    children = []
    for rank, output in enumerate(outputs):
        with open(output, "w") as stderr:
            children.append(
                subprocess.Popen(
                    [sys.executable, str(script), str(directory)],
                    env={**inherited, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stderr=stderr,
                )
            )
    running = {os.pidfd_open(child.pid): child for child in children}
    try:
        # One that fails, or does not end, leaves the other one waiting.
        while running and all(child.poll() in (None, 0) for child in children):
            ended = select.select(list(running), [], [], HANG_S)[0]
            if not ended:
                break
            for descriptor in ended:
                running.pop(descriptor).wait()
                os.close(descriptor)
    finally:
        for descriptor, child in running.items():
            child.kill()
            child.wait()
            os.close(descriptor)
    told = []
    for rank, output in enumerate(outputs):
        answers = directory / f"told-{rank}"
        lines = answers.read_text().splitlines() if answers.exists() else []
        told.append({"": output.read_text(), **dict(json.loads(line) for line in lines)})
    return told


def case(function: Case) -> Case:
    """Add a case: a function of a directory that is empty and that both ranks have. What it takes
    of the process must be back at its end.
    """

    def watched(directory: Path) -> None:
        with counters():
            function(directory)
            gc.collect()

    CASES[function.__name__] = watched
    return function


def run_cases(warm_up: Case) -> None:
    """In a rank: run all cases in order, and tell what came of each. After a failure the other rank
    cannot go on, so this one ends. ``warm_up`` does what torch keeps something of.
    """
    directory, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{directory}/rendezvous",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=HANG_S),
    )
    with open(directory / f"told-{rank}", "w", buffering=1) as told:
        for name, run in {"warm_up": warm_up, **CASES}.items():
            shared = directory / name
            shared.mkdir(exist_ok=True)
            try:
                run(shared)
                failure = ""
            except BaseException:
                failure = traceback.format_exc()
            told.write(json.dumps([name, failure]) + "\n")
            if failure:
                os._exit(1)
            if run is warm_up:
                gc.collect()
                gc.freeze()  # so that what is looked through for each case is what it has made
            distributed.barrier()
    distributed.destroy_process_group()


def gathered(value: Any) -> list[Any]:
    """What each rank has."""
    values: list[Any] = [None] * RANKS
    distributed.all_gather_object(values, value)
    return values
