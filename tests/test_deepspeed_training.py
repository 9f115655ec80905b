"""DeepSpeed's ZeRO-3 trains with its states and parameters on a drive through this library.

The losses are those of the same training without a drive, bit for bit.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.deepspeed import IN_A_CHILD, deepspeed_answer

pytestmark = IN_A_CHILD

TRAIN = """
import json, sys
from pathlib import Path
from support.deepspeed_training import *

folder = Path(sys.argv[1])
start(folder / "store")
cpu = {"sub_group_size": TILE, "offload_optimizer": {"device": "cpu"}}
cases = {
    "float32": (cpu, False),
    "float32, states": (nvme_optimizer(folder), False),
    "float32, states, pipelined": (nvme_optimizer(folder, pipeline=True), False),
    "bfloat16": (cpu, True),
    "bfloat16, states": (nvme_optimizer(folder), True),
    "bfloat16, states, pipelined": (nvme_optimizer(folder, pipeline=True), True),
    "bfloat16, parameters": ({**cpu, **nvme_params(folder)}, True),
    "bfloat16, both": ({**nvme_optimizer(folder), **nvme_params(folder)}, True),
}
answers = {}
for name, (zero, bf16) in cases.items():
    with engine(config(zero, bf16)) as trained:
        losses = steps(trained)
        files = [file.stat().st_size for file in folder.rglob("*.swp")]
        answers[name] = {
            "losses": losses, "moved": moved(trained), "live": live_bytes(), "files": sum(files)
        }
    answers[name]["left"] = live_bytes()

# FastFileWriter on our handle; of the operator that the CPU accelerator lacks, one function.
import deepspeed.io.fast_file_writer as writer
from deepspeed.ops.op_builder import AsyncIOBuilder

class Utils:
    def load(self):
        return self
    def cast_to_byte_tensor(self, tensors):
        return [one.reshape(-1).view(torch.uint8) for one in tensors]

writer.UtilsBuilder = Utils
handle = AsyncIOBuilder().load().aio_handle()
buffer = handle.new_cpu_locked_tensor(1 << 20, torch.empty(0, dtype=torch.uint8))
content = {"a": torch.randn(300_007), "b": torch.arange(7), "c": torch.randn(2, 70_001)}
file = writer.FastFileWriter(str(folder / "saved.pt"), writer.FastFileWriterConfig(handle, buffer))
torch.save(content, f=file, _use_new_zipfile_serialization=False)
file.close()
loaded = torch.load(folder / "saved.pt")
written = {
    "equal": [torch.equal(loaded[key], value) for key, value in content.items()],
    "moved": sum(handle.stats()["bytes"]["write"].values()),
}
print(json.dumps({"cases": answers, "written": written}))
"""
PARAMETERS = 768 * 768  # of each of the two wide layers, which alone are large enough to be swapped


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return deepspeed_answer(TRAIN, tmp_path_factory.mktemp("nvme"))


@pytest.fixture
def trained(answers: Any) -> Any:
    return answers["cases"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("offloaded", ["states", "states, pipelined", "parameters", "both"])
def test_losses_are_those_without_a_drive(trained: Any, precision: str, offloaded: str) -> None:
    if precision == "float32" and offloaded in ("parameters", "both"):
        pytest.skip("DeepSpeed swaps float32 parameters as half precision, which changes them")
    assert trained[f"{precision}, {offloaded}"]["losses"] == trained[precision]["losses"]
    assert len(set(trained[precision]["losses"])) == 3


def test_states_pass_through_our_handles(trained: Any) -> None:
    """At least two moments and a master, of four bytes, each way and in each of three steps."""
    least = 3 * 2 * PARAMETERS * 3 * 4
    for name in ("float32, states", "bfloat16, states", "bfloat16, states, pipelined"):
        assert trained[name]["moved"]["read"] >= least, name
        assert trained[name]["moved"]["write"] >= least, name
        assert trained[name]["files"] >= 2 * PARAMETERS * 3 * 4, name


def test_parameters_pass_through_our_handles(trained: Any) -> None:
    """Read for forward and backward, and written after each step."""
    moved = trained["bfloat16, parameters"]["moved"]
    assert moved["read"] >= 3 * 2 * 2 * PARAMETERS * 2
    assert moved["write"] >= 3 * 2 * PARAMETERS * 2


def test_swap_buffers_are_of_our_registry(trained: Any) -> None:
    """They rise with the engine, and go with its swappers."""
    for name, answer in trained.items():
        assert (answer["live"] > 0) == ("," in name), name
        assert answer["left"] == 0, name


def test_a_checkpoint_by_fast_file_writer(answers: Any) -> None:
    """Nearly all of it through our handle; the last few hundred bytes DeepSpeed writes itself."""
    assert answers["written"]["equal"] == [True] * 3
    assert answers["written"]["moved"] >= 4 * (300_007 + 2 * 70_001)
