"""Each example runs as it is, says what it did, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.child import HANG_S, with_low_memlock

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
# Short ones, each complete in itself; tests/test_demo.py has the long one and its modules.
SHORT = {
    "round_trip": r"4000000 bytes came back through \w+",
    "many_tensors": r"1000 of 5000 tensors, \d+ bytes",
    "with_asyncio": r"8 parts read; another task ran [1-9]\d* times",
    "shared_buffers": r"1600\d{4} bytes locked for both handles",
    "load_safetensors": r"2 tensors, 600008 bytes, page-locked: \w+, \w+",
}
NEEDS = {"load_safetensors": "safetensors"}


def run_example(
    name: str, *arguments: object, wrapper: list[str] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    warnings = ("-W", "error", "-W", "ignore::DeprecationWarning:torch")
    command = [sys.executable, *warnings, EXAMPLES / f"{name}.py"]
    return subprocess.run(
        [*(wrapper or []), *map(str, command), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": search} | environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.mark.parametrize("name", SHORT)
def test_runs(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    done = run_example(name)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert re.search(SHORT[name], done.stdout), done.stdout


def test_short_ones_are_short() -> None:
    lines = {name: len((EXAMPLES / f"{name}.py").read_text().splitlines()) for name in SHORT}
    assert {name: count for name, count in lines.items() if count > 60} == {}


def test_every_example_is_in_the_readme() -> None:
    text = (EXAMPLES / "README.md").read_text()
    assert [file.name for file in EXAMPLES.glob("*.py") if f"`{file.name}`" not in text] == []


def test_safetensors_are_those_of_the_package(tmp_path: Path) -> None:
    """Tensors of several dtypes, an empty one and a scalar, as the package itself reads them."""
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    import aio

    sys.path.insert(0, str(EXAMPLES))
    try:
        from load_safetensors import load
    finally:
        sys.path.remove(str(EXAMPLES))
    file = tmp_path / "model.safetensors"
    expected = {
        "flags": torch.tensor([True, False, True]),
        "half": torch.randn(7, 3).bfloat16(),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(5),
        "bytes": torch.arange(11, dtype=torch.uint8),
        "matrix": torch.randn(33, 65),
    }
    safetensors.save_file(expected, file, metadata={"made by": "a test"})
    with aio.aio_handle() as handle:
        found = load(file, handle)
        assert all(handle.is_pinned(tensor) for tensor in found.values() if tensor.numel())
    theirs = safetensors.load_file(file)
    assert found.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


def test_no_memory_to_lock_is_said() -> None:
    done = run_example("shared_buffers", wrapper=with_low_memlock(1 << 20))
    assert done.returncode == 1
    assert re.match("cannot lock memory here: .*16000000", done.stderr), done.stderr


def test_missing_package_is_said(tmp_path: Path) -> None:
    (tmp_path / "safetensors.py").write_text("raise ImportError('hidden by a test')\n")
    done = run_example("load_safetensors", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1
    assert "pip install safetensors" in done.stderr
