"""Types are those of the code, mypy --strict takes a program that uses every public name."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import api_reference

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "support" / "user_program.py"

# torch's sources take longer to read than all that is tested here. `make lint` reads them, and
# reports what is wrong inside of the packages.
SETTINGS = """\
[mypy]
strict = {strict}
ignore_errors = {ignore_errors}
[mypy-torch.*,numpy.*]
follow_imports = skip
"""

# What stubtest says of sources that are right, and why it does.
ALLOWED = {
    r"aio\.deepspeed\.bootstrap\.sitecustomize": "runs in Python's own place for it, by that name",
    r"aio\.swap\.statistics\.Kind": "an alias of a Literal, which it takes for a Union",
    r"pinned_manager\.backends\.Backend": "the same",
    r"pinned_manager\.device\.Device\.side_stream": "abstract behind another decorator",
    r"pinned_manager\.states\.kinds\.OffloadStateTypeEnum\.__new__": "EnumType has replaced str's",
    r"pinned_manager\.streams\._report_broken": "lru_cache shows its signature at runtime alone",
}

pytestmark = pytest.mark.not_sanitized(
    "mypy looks at the shipped extension, whose types are the same"
)


def mypy(tool: str, *arguments: object, cwd: Path, **settings: bool) -> None:
    """As from elsewhere, so that the packages count as installed and need their py.typed."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    (cwd / "mypy.ini").write_text(SETTINGS.format(**settings))
    done = subprocess.run(
        [sys.executable, "-m", tool, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_program_of_a_user_is_accepted(tmp_path: Path) -> None:
    assert [
        name for name in ("aio", "pinned_manager") if not (ROOT / name / "py.typed").exists()
    ] == []
    settings = {"strict": True, "ignore_errors": False}
    mypy("mypy", "--cache-dir", os.devnull, PROGRAM, cwd=tmp_path, **settings)


def test_program_uses_every_public_name() -> None:
    used = set(re.findall(r"\w+", PROGRAM.read_text()))
    missing = []
    for module in api_reference.public_modules():
        for name in import_module(module).__all__:
            value = getattr(import_module(module), name)
            missing += [f"{module}.{name}"] * (name not in used)
            if inspect.isclass(value) and value.__module__.startswith(("aio", "pinned_manager")):
                own = [part for part in vars(value) if not part.startswith("_")]
                missing += [f"{module}.{name}.{part}" for part in own if part not in used]
    assert missing == []


def test_program_is_only_read() -> None:
    """It would write files: what it does is in functions that nobody calls."""
    body = ast.parse(PROGRAM.read_text()).body
    harmless = ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    assert [node.lineno for node in body[1:] if not isinstance(node, harmless)] == []


def test_types_are_those_at_runtime(tmp_path: Path) -> None:
    """Stubs of the extension, and the types inside of the packages."""
    allowed = tmp_path / "allowed"
    allowed.write_text("".join(f"{name}  # {reason}\n" for name, reason in ALLOWED.items()))
    # What is wrong with an old Python or mypy may be right with a newer one.
    options = ("--concise", "--allowlist", allowed, "--ignore-unused-allowlist")
    packages = ("_deepnvme", "aio", "pinned_manager")
    settings = {"strict": False, "ignore_errors": True}
    mypy(
        "mypy.stubtest", *packages, *options, "--mypy-config-file", "mypy.ini",
        cwd=tmp_path, **settings,
    )  # fmt: skip
