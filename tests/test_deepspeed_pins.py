"""DeepSpeed's own pins (DS_PIN_MEMORY_BACKEND=native) are of this registry, and are given back.

Expected are the sizes of the tensors that DeepSpeed pins, each rounded up to a page.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from support.deepspeed import IN_A_CHILD, answers_of_ranks, deepspeed_answer

pytestmark = IN_A_CHILD

PINS = """
import json, os, sys
from pathlib import Path
from support.deepspeed_training import *

folder = Path(sys.argv[1])
start(folder / "store")
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.superoffload.superoffload_utils import _allocate_worker_grad_buffer
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as Kind

PAGE = os.sysconf("SC_PAGE_SIZE")
pinned = {"device": "cpu", "pin_memory": True}
answers = {}

def offload_and_reload(engine, include, stage):
    optimizer = engine.optimizer
    engine.offload_states(include=include, pin_memory=True, non_blocking=False)
    answer = {"offloaded": live_bytes()}
    buffers = optimizer.hp_params_pin_buffers + optimizer.lp_params_pin_buffers if stage < 3 else [
        optimizer.lp_param_contiguous_pin_buffer, optimizer.lp_grad_partitions_flat_pin_buffers]
    answer["expected"] = sum(-(-one.nbytes // PAGE) * PAGE for one in buffers)
    answer["is_pinned"] = all(get_accelerator().is_pinned(one) for one in buffers)
    del buffers
    engine.reload_states()
    answer["reloaded"] = live_bytes()
    engine.offload_states(include=include, pin_memory=True, non_blocking=False)
    return answer

for stage in (1, 2, 3):
    include = [Kind.lp_params, Kind.lp_grads] if stage == 3 else None  # the rest needs FusedAdam
    trained = engine_of(config({}, bf16=True, stage=stage))
    steps(trained, 1)
    answer = offload_and_reload(trained, include, stage)
    trained.destroy()
    answer["destroyed"] = live_bytes()
    answers[f"offload_states, stage {stage}"] = answer

for stage in (1, 2, 3):
    trained = engine_of(config({"offload_optimizer": pinned}, bf16=True, stage=stage))
    steps(trained, 1)
    answer = {"trained": live_bytes()}
    trained.destroy()
    answer["destroyed"] = live_bytes()
    answers[f"offload_optimizer, stage {stage}"] = answer

buffer = _allocate_worker_grad_buffer(100_000, True)
answer = {"trained": live_bytes()}
get_accelerator().unpin_memory(buffer)
answer["destroyed"] = live_bytes()
answers["SuperOffload's gradient buffer"] = answer
print(json.dumps(answers))
"""

# ZeRO++: a second copy of the partitions, in a group of two ranks, between forward and backward.
SECONDARY = """
import json, os, sys
from pathlib import Path
from support.deepspeed_training import *

folder = Path(sys.argv[1])
start(folder / "store")
from deepspeed.accelerator import get_accelerator

PAGE = os.sysconf("SC_PAGE_SIZE")
zero = {"zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0,
        "offload_param": {"device": "cpu", "pin_memory": True}}
trained = engine_of(config(zero, bf16=True))
loss = trained(next(batches(1)).bfloat16()).float().square().mean()
shards = [param.ds_secondary_tensor for param in trained.module.parameters()]
answer = {
    "is_pinned": [get_accelerator().is_pinned(one) for one in shards],
    "nbytes": sum(-(-one.nbytes // PAGE) * PAGE for one in shards),
    "forward": live_bytes(),
}
del shards
trained.backward(loss)
trained.step()
answer["step"] = live_bytes()
trained.destroy()
(folder / f"answers-{os.environ['RANK']}").write_text(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def pins(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("pins")
    return deepspeed_answer(PINS, folder, DS_PIN_MEMORY_BACKEND="native")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_offload_states_and_back(pins: Any, stage: int) -> None:
    answer = pins[f"offload_states, stage {stage}"]
    assert answer["offloaded"] == answer["expected"] > 0
    assert answer["is_pinned"]
    assert answer["reloaded"] in (0, answer["expected"])  # stage 3 keeps its buffers
    assert answer["destroyed"] == 0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_states_of_the_optimizer(pins: Any, stage: int) -> None:
    answer = pins[f"offload_optimizer, stage {stage}"]
    assert answer["trained"] > 0
    assert answer["destroyed"] == 0


def test_superoffload(pins: Any) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    answer = pins["SuperOffload's gradient buffer"]
    assert answer == {"trained": -(-4 * 100_000 // page) * page, "destroyed": 0}


def test_secondary_shards(tmp_path: Path) -> None:
    """They go with the step; the parameters, which are pinned too, stay."""
    for answer in answers_of_ranks(SECONDARY, tmp_path, DS_PIN_MEMORY_BACKEND="native"):
        assert answer["is_pinned"] == [True] * 6  # weight and bias of three layers
        assert answer["forward"] - answer["step"] == answer["nbytes"] > 0
