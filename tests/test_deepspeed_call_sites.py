"""Every call that DeepSpeed's own code makes on a handle, or on what a builder loads, fits ours.

The calls are found in the source of the DeepSpeed that is installed, so that a later version with a
method or an argument more is noticed.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aio
from aio.deepspeed import operators
from support.deepspeed import require

pytestmark = pytest.mark.deepspeed

# GPUDirect Storage: behind use_gds, which is refused when the handle is made.
REFUSED = {"pin_device_tensor", "unpin_device_tensor", "gds_handle"}
# Lists of handles, and optimizers of compressed communication, are not handles.
NOT_HANDLES = {"remove", "compressed_allreduce"}
# Files that know of them; elsewhere collectives of torch.distributed are called handles as well.
KNOWS = re.compile(r"aio_handle|dnvme_handle|gds_handle|AsyncIOBuilder|PinMemoryBuilder")


def name_of(node: ast.AST) -> str:
    """The last name of an expression: x for x, a.x and a[x]."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Name(id=name)):
            return name
    return ""


def is_load(node: ast.AST) -> bool:
    """True for AsyncIOBuilder().load() and the like, and for a name that it is given there."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id=name)), attr="load")):
            return name in ("AsyncIOBuilder", "PinMemoryBuilder", "GDSBuilder")
    return name_of(node) == "aio_op"


def calls(package: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """Where it is, what is called ("handle", "module" or "constructor", and its name), the call."""
    for file in sorted(package.rglob("*.py")):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if KNOWS.search(text) else ():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner, called = node.func.value, node.func.attr
            where = f"{file.relative_to(package)}:{node.lineno}"
            if is_load(owner):
                yield where, f"module.{called}", node
            elif called == "aio_handle":  # the class that a swapper has chosen
                yield where, "module.aio_handle", node
            elif name_of(owner).lower().endswith("handle"):
                yield where, f"handle.{called}", node


def target(called: str) -> Any:
    """Our function of that name; None if there is none."""
    kind, _, name = called.partition(".")
    if kind == "handle":
        for owner in (operators.aio_handle, aio.pin_handle):
            if hasattr(owner, name):
                return getattr(owner, name)
        return None
    return next((vars(one)[name] for one in operators.MODULES.values() if name in vars(one)), None)


def test_every_call_fits() -> None:
    _, package = require()
    found = set()
    for where, called, call in calls(package):
        kind, _, name = called.partition(".")
        if name in REFUSED | NOT_HANDLES:
            continue
        function = target(called)
        assert function is not None, f"{where} calls {called}, which is not there"
        positional: list[object] = [None] * (len(call.args) + (kind == "handle"))
        if any(isinstance(argument, ast.Starred) for argument in call.args):
            continue
        keywords = {word.arg: None for word in call.keywords if word.arg}
        try:
            inspect.signature(function).bind(*positional, **keywords)
        except TypeError as error:
            pytest.fail(f"{where} calls {called} as it cannot be called: {error}")
        found.add(called)
    used = {"async_pread", "async_pwrite", "wait", "new_cpu_locked_tensor", "pread", "pwrite"}
    assert found >= {f"handle.{name}" for name in used}
    assert found >= {"module.aio_handle", "module.aio_read", "module.aio_write"}
