"""The interpreter that has DeepSpeed, and scripts in it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.child import HANG_S, child_answer

# pytestmark of a file whose tests run DeepSpeed in a child.
IN_A_CHILD = [
    pytest.mark.deepspeed,
    pytest.mark.not_sanitized("DeepSpeed runs in an interpreter of its own"),
]

ROOT = Path(__file__).resolve().parent.parent.parent
FIND = "import importlib.util as u; print(u.find_spec('deepspeed').submodule_search_locations[0])"
ALONE = {
    **{"DS_ACCELERATOR": "cpu", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
    "OMP_NUM_THREADS": "1",  # threads of OpenMP spin beside those of other tests
}


@functools.cache
def interpreter() -> tuple[str, Path] | None:
    """Where `make setup` puts DeepSpeed, else this interpreter if it has it; with the package."""
    named = os.environ.get("DEEPSPEED_PYTHON")
    own = str(Path(sys.prefix) / "deepspeed" / "bin" / "python")
    for python in (named, own, sys.executable):
        if python and Path(python).exists():
            found = subprocess.run([python, "-c", FIND], capture_output=True, text=True)
            if found.returncode == 0:
                return python, Path(found.stdout.strip())
    return None


def require() -> tuple[str, Path]:
    """The interpreter and the package; skips where there is none."""
    found = interpreter()
    if found is None:
        pytest.skip("DeepSpeed is not installed: make setup, or name a python: DEEPSPEED_PYTHON")
    return found


def environment() -> dict[str, str]:
    """That of a child which imports DeepSpeed: one rank, and this tree before what is installed."""
    search = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    return {**os.environ, **ALONE, "PYTHONPATH": search}


def deepspeed_answer(script: str, *arguments: object, **more: str) -> Any:
    """What a script that imports DeepSpeed prints as its last line, of JSON."""
    python, _ = require()
    return child_answer(
        script,
        *arguments,
        python=python,
        environment={**environment(), **more},
        timeout=5 * HANG_S,
    )


def answers_of_ranks(script: str, folder: Path, ranks: int = 2, **more: str) -> list[Any]:
    """What each rank of a script has written, as JSON, to ``answers-RANK`` in the folder."""
    python, _ = require()
    processes = []
    for rank in range(ranks):
        of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        with (folder / f"errors-{rank}").open("w") as errors_of_rank:
            processes.append(
                subprocess.Popen(
                    [python, "-c", script, str(folder)],
                    env={**environment(), **more, **of_rank},
                    stdout=subprocess.DEVNULL,
                    stderr=errors_of_rank,
                )
            )
    try:
        codes = [process.wait(timeout=5 * HANG_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    errors = [(folder / f"errors-{rank}").read_text() for rank in range(ranks)]
    assert codes == [0] * ranks, "\n".join(errors)
    return [json.loads((folder / f"answers-{rank}").read_text()) for rank in range(ranks)]
