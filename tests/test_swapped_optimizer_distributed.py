"""Swapped optimizers on two ranks: at every step what those of torch compute, bit for bit (G-06).

FSDP2, DDP and tensor parallelism, over gloo. All cases share one pair of processes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support import rank_cases
from support.child import TESTS
from support.ranks import CASES, HANG_S, RANKS, run_ranks

_TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]

pytestmark = [
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason="torch is built without gloo",
    ),
    pytest.mark.not_sanitized("what differs from one process is in Python"),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What came of each case on each rank."""
    return run_ranks(Path(rank_cases.__file__), tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", ["warm_up", *CASES])
def test_two_ranks(told: list[dict[str, str]], name: str) -> None:
    failures = [f"rank {rank}: {of_it[name]}" for rank, of_it in enumerate(told) if of_it.get(name)]
    assert not failures, "\n".join(failures)
    for rank, of_it in enumerate(told):
        assert name in of_it, f"rank {rank} has ended before; its standard error:\n{of_it['']}"


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    """It runs as it says, by torchrun."""
    page = (TESTS.parent / "docs" / "swapping.md").read_text()
    section = page.partition("### Several processes\n")[2].partition("\n### ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text("".join(blocks))
    search = [str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    launched = subprocess.run(
        [*_TORCHRUN, f"--nproc-per-node={RANKS}", "--standalone", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert launched.returncode == 0, launched.stderr
    saved = [torch.load(tmp_path / f"optimizer-{rank}.pt") for rank in range(RANKS)]
    assert [parts["local_parts"]["rank"] for parts in saved] == list(range(RANKS))
    assert [parts["state"][0]["exp_avg"].shape for parts in saved] == [(128, 64)] * RANKS
    assert list((tmp_path / "drive0").iterdir()) == []
