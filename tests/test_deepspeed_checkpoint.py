"""G-06: DeepSpeed's checkpoints of states on a drive have the states, of each rank its own.

Expected are the states of the same training with states in memory. After load_checkpoint() the
masters on the drive are those of the checkpoint, and not what training has left there since.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.deepspeed import IN_A_CHILD, answers_of_ranks, deepspeed_answer

pytestmark = IN_A_CHILD

SAVE = """
import json, sys
from pathlib import Path
from support.deepspeed_training import *

folder = Path(sys.argv[1])
start(folder / "store")
rank = torch.distributed.get_rank()
cpu = {"sub_group_size": TILE, "offload_optimizer": {"device": "cpu"}}

def states_in_memory(engine):
    optimizer = engine.optimizer
    for master in optimizer.fp32_partitioned_groups_flat:
        state = optimizer.optimizer.state[master]
        yield [one.clone() for one in (master.detach(), state["exp_avg"], state["exp_avg_sq"])]

def states_on_the_drive(folder, rank):
    ranked = [one for one in folder.rglob(f"rank*{rank}") if one.is_dir()]
    names = sorted(file.name for one in ranked for file in one.glob("*.swp"))
    for name in names:
        if "-" not in name and "gradient" not in name:
            where = ranked[0]
            yield [where / name, where / f"exp_avg-{name}", where / f"exp_avg_sq-{name}"]

def content(file, numel):
    return torch.from_file(str(file), size=numel, dtype=torch.float32)

answers = {}
with engine(config(cpu)) as trained:
    answers["losses"] = steps(trained, 2)
    swapped = [one for one in states_in_memory(trained) if one[0].nbytes >= 1 << 20]
for name, pipeline in {"plain": False, "pipelined": True}.items():
    swap, saved = folder / f"swap-{name}", folder / f"saved-{name}"
    with engine(config(nvme_optimizer(swap, pipeline))) as trained:
        answer = {"losses": steps(trained, 2)}
        trained.save_checkpoint(str(saved))
        files = list(states_on_the_drive(saved, rank))
        answer["saved"] = [
            torch.equal(content(file, state.numel()), state)
            for paths, states in zip(files, swapped, strict=True)
            for file, state in zip(paths, states, strict=True)
        ]
        steps(trained, 1, first=7)  # leaves other states on the drive
        back = list(states_on_the_drive(swap, rank))
        stale = [content(paths[0], states[0].numel()) for paths, states in zip(back, swapped)]
        answer["stale"] = [torch.equal(now, states[0]) for now, states in zip(stale, swapped)]
        trained.load_checkpoint(str(saved))
        answer["loaded"] = [
            torch.equal(content(paths[0], states[0].numel()), states[0])
            for paths, states in zip(back, swapped, strict=True)
        ]
    answers[name] = answer
(folder / f"answers-{rank}").write_text(json.dumps(answers))
print(json.dumps(answers))
"""


def check(answer: Any, swapped: int) -> None:
    for name in ("plain", "pipelined"):
        assert answer[name]["losses"] == answer["losses"]
        assert answer[name]["saved"] == [True] * 3 * swapped  # a master and two moments of each
        assert answer[name]["stale"] == [False] * swapped
        assert answer[name]["loaded"] == [True] * swapped


def test_one_rank(tmp_path: Path) -> None:
    check(deepspeed_answer(SAVE, tmp_path), swapped=2)


def test_two_ranks_below_one_directory(tmp_path: Path) -> None:
    """Each holds half of every layer, so that both wide ones are in one sub-group."""
    answers = answers_of_ranks(SAVE, tmp_path)
    assert answers[0]["losses"] != answers[1]["losses"]  # of different batches
    for answer in answers:
        check(answer, swapped=1)
