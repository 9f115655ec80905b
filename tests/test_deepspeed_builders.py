"""The builders of the DeepSpeed that is installed: all accelerators', replaced and put back."""

from __future__ import annotations

from typing import Any

import pytest

from support.deepspeed import IN_A_CHILD, deepspeed_answer

pytestmark = IN_A_CHILD

LOOK = """
import importlib, json, pkgutil, sys
import aio.deepspeed
from aio.deepspeed import operators

def variants():
    import deepspeed.ops.op_builder as package
    names = [one.name for one in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    for name in names:
        if name.rpartition(".")[2] in ("async_io", "pin_memory", "gds"):
            module = importlib.import_module(name)
            for value in vars(module).values():
                if getattr(value, "NAME", None) in ("async_io", "pin_memory", "gds"):
                    yield name.removeprefix(package.__name__ + "."), value

def bare(builder):
    return builder.__new__(builder)  # the constructor of NPU's looks for its toolkit

def look():
    import deepspeed
    from deepspeed.ops.op_builder import AsyncIOBuilder, builder
    from deepspeed.runtime.swap_tensor import partitioned_param_swapper as swapper
    found = {
        "variants": sorted({name for name, _ in variants()}),
        "ours": all(
            one.load(bare(one)) is operators.MODULES[one.NAME] and one.is_compatible(bare(one))
            for _, one in variants() if one.NAME != "gds"
        ),
        "user": swapper.AsyncIOBuilder().load() is operators.async_io,
        "gds": [one.is_compatible(bare(one)) for _, one in variants() if one.NAME == "gds"],
        "cached": sorted(set(builder.OpBuilder._loaded_ops)),
        "pins": hasattr(sys, "_deepspeed_pin_memory_op_module"),
    }
    return found

order = sys.argv[1]
answers = {}
if order == "before":
    aio.deepspeed.enable()
    answers["imported by enable"] = "deepspeed" in sys.modules
    import deepspeed
    answers["enabled"] = look()
    answers["compatible"] = deepspeed.ops.__compatible_ops__["async_io"]
    from deepspeed.env_report import op_report
    op_report()
else:
    import deepspeed
    from deepspeed.ops.op_builder import builder
    from deepspeed.runtime.swap_tensor import partitioned_param_swapper
    classes = {one for _, one in variants()}
    before = {one: dict(vars(one)) for one in classes}
    aio.deepspeed.enable()
    answers["enabled"] = look()
    aio.deepspeed.disable()
    answers["restored"] = all(dict(vars(one)) == before[one] for one in classes)
    answers["cached"] = sorted(builder.OpBuilder._loaded_ops)
    answers["pins"] = hasattr(sys, "_deepspeed_pin_memory_op_module")
print()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def before() -> Any:
    return deepspeed_answer(LOOK, "before")


@pytest.fixture(scope="module")
def after() -> Any:
    return deepspeed_answer(LOOK, "after")


def check(found: Any) -> None:
    assert found["ours"]
    assert found["user"]
    assert found["gds"] == [False]
    assert found["cached"] == ["async_io", "pin_memory"]
    assert found["pins"]
    assert {"async_io", "cpu.async_io", "npu.async_io", "xpu.async_io"} <= set(found["variants"])


def test_enabled_before_the_import(before: Any) -> None:
    assert not before["imported by enable"]
    check(before["enabled"])
    assert before["compatible"]


def test_enabled_after_the_import(after: Any) -> None:
    check(after["enabled"])


def test_disabled_leaves_no_trace(after: Any) -> None:
    assert after["restored"]
    assert after["cached"] == []
    assert not after["pins"]
