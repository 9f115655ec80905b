"""No check is an assert: python -O and -DNDEBUG change nothing (B-09, C-01, FX11)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support.child import child_answer

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = """
import errno, json, sys
import torch, aio
folder = sys.argv[1]
answer = [sys.flags.optimize]

def attempt(call):
    try:
        answer.append(call())
    except Exception as error:
        answer.append(f"{type(error).__name__} {getattr(error, 'errno', '')}".strip())

handle = aio.aio_handle()
attempt(handle.wait)
attempt(lambda: handle.sync_pread(bytearray(10), f"{folder}/missing"))
attempt(lambda: handle.sync_pwrite(b"12345", f"{folder}/file"))
attempt(lambda: handle.sync_pread(bytearray(10), f"{folder}/file"))
attempt(lambda: handle.sync_pread(bytearray(5), f"{folder}/file", -1))
attempt(lambda: handle.sync_pread(torch.zeros(1).expand(5), f"{folder}/file"))
attempt(lambda: handle.sync_pread("text", f"{folder}/file"))
attempt(lambda: handle.read(torch.empty(5, device="meta"), f"{folder}/file", True))
attempt(lambda: aio.aio_handle(block_size=0))
attempt(lambda: handle.free_cpu_locked_tensor(torch.zeros(3)))
attempt(lambda: handle.new_cpu_locked_tensor(-1, torch.zeros(1)))
attempt(handle.close)
attempt(handle.wait)
print(json.dumps(answer))
"""


def test_the_same_with_asserts_off(tmp_path: Path) -> None:
    checked = child_answer(SCRIPT, tmp_path)
    unchecked = child_answer(SCRIPT, tmp_path, options=["-OO"])
    assert (checked[0], unchecked[0]) == (0, 2)
    assert checked[1:] == unchecked[1:]
    assert checked[1:4] == [0, "AioError 2", 1]
    assert checked[4] == "AioError 61"


def test_the_library_has_no_assert() -> None:
    found = []
    for package in ("aio", "pinned_manager"):
        for file in (ROOT / package).rglob("*.py"):
            nodes = ast.walk(ast.parse(file.read_text()))
            found += [f"{file}:{node.lineno}" for node in nodes if isinstance(node, ast.Assert)]
    for file in (ROOT / "csrc").rglob("*.*"):
        if re.search(r"(?<!static_)\bassert\s*\(|\bNDEBUG\b|<cassert>", file.read_text()):
            found.append(str(file))
    assert found == []
