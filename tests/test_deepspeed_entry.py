"""``python -m aio.deepspeed`` is python, with DeepSpeed on this engine, in its children too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aio.deepspeed.__main__ import BOOTSTRAP, interpreter_options, main
from support.child import HANG_S
from support.deepspeed import ROOT
from support.fake_deepspeed import write_package

SCRIPT = """
import json, os, subprocess, sys
had_torch = "torch" in sys.modules
import deepspeed
def loaded():
    loaded = deepspeed.swapper.AsyncIOBuilder().load()
    return loaded if isinstance(loaded, str) else loaded.__name__
if sys.argv[1:2] == ["child"]:
    print(loaded())
else:
    child = subprocess.run(
        [sys.executable, __file__, "child"], capture_output=True, text=True, check=True
    )
    print(json.dumps({
        "name": __name__, "arguments": sys.argv[1:], "path": sys.path[0], "torch": had_torch,
        "loaded": loaded(), "child": child.stdout.strip(), "unbuffered": sys.stdout.write_through,
        "bootstrap": any("bootstrap" in entry for entry in sys.path),
    }))
"""
OURS, OWN = "aio.deepspeed.async_io", "own compiled async_io"


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python arguments``, where the fake package is found and this tree is the directory."""
    search = [environment.pop("PYTHONPATH", ""), str(folder), os.environ.get("PYTHONPATH", "")]
    inherited = {key: value for key, value in os.environ.items() if key != "DEEPNVME_DEEPSPEED"}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**inherited, **environment, "PYTHONPATH": os.pathsep.join(filter(None, search))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def run_enabled(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `python -m aio.deepspeed` becomes, without the seconds that it takes to import torch."""
    return run(folder, *arguments, PYTHONPATH=str(BOOTSTRAP), DEEPNVME_DEEPSPEED="1")


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_package(tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_script(folder: Path) -> None:
    script = str(folder / "scripts" / "train.py")
    assert answer(run(folder, "-u", "-m", "aio.deepspeed", script, "--lr", "-m", "1")) == {
        "name": "__main__",
        "arguments": ["--lr", "-m", "1"],
        "path": str(folder / "scripts"),
        "torch": False,  # not before DeepSpeed is imported
        "loaded": OURS,
        "child": OURS,
        "unbuffered": True,
        "bootstrap": False,
    }


def test_a_module(folder: Path) -> None:
    scripts = str(folder / "scripts")
    done = run(folder, "-m", "aio.deepspeed", "-m", "train", "child", PYTHONPATH=scripts)
    assert done.stdout.strip() == OURS, done.stderr


def test_left_alone_where_the_variable_says_so(folder: Path) -> None:
    script = str(folder / "scripts" / "train.py")
    found = answer(run(folder, "-m", "aio.deepspeed", script, DEEPNVME_DEEPSPEED="0"))
    assert (found["loaded"], found["child"]) == (OWN, OWN)
    done = run(folder, "-m", "aio.deepspeed", script, DEEPNVME_DEEPSPEED="yes")
    assert done.returncode == 1
    assert "DEEPNVME_DEEPSPEED is 'yes'" in done.stderr


def test_the_exit_is_the_programs(folder: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert run(folder, "-m", "aio.deepspeed", "-c", code).returncode == -signal.SIGTERM


def test_an_unknown_version_is_an_error_of_the_import(folder: Path) -> None:
    write_package(folder, "0.99.1")
    code = """
for _ in range(2):
    try:
        import deepspeed
    except RuntimeError as error:
        print(type(error).__name__, error)
"""
    done = run_enabled(folder, "-c", code)
    assert done.stdout.count("UnsupportedDeepSpeed") == done.stdout.count("0.99.1") == 2


def test_without_asserts_nothing_is_enabled(folder: Path) -> None:
    done = run_enabled(folder, "-O", "-c", "import deepspeed")
    assert done.returncode == 1
    assert "assert statements" in done.stderr


@pytest.mark.parametrize("options", [[], ["-E"], ["-I"], ["-S"]])
def test_what_cannot_be(folder: Path, options: list[str]) -> None:
    """No program is a usage error; options that turn PYTHONPATH off are named."""
    program = ["-c", "pass"] if options else []
    done = run(folder, *options, "-c", MAIN, *program)
    assert done.returncode != 0
    assert ("PYTHONPATH" if options else "usage:") in done.stderr
    assert done.stdout == ""


MAIN = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("main", {str(BOOTSTRAP.with_name("__main__.py"))!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.main()
"""


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["aio.deepspeed", flag, "train.py"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert capsys.readouterr().out.startswith("usage: python -m aio.deepspeed")


def test_the_sitecustomize_that_was_there_runs_too(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("import builtins; builtins.customized = __file__")
    code = "import sitecustomize; print(customized, sitecustomize.__file__)"
    done = run_enabled(folder, "-c", code)
    assert done.stdout.split() == [str(folder / "sitecustomize.py")] * 2, done.stderr
    (folder / "sitecustomize.py").write_text("import missing_package")
    done = run_enabled(folder, "-c", "print('ran')")
    assert "missing_package" in done.stderr
    assert done.stdout.strip() == "ran"  # as python does


@pytest.mark.parametrize(
    ("original", "program", "options"),
    [
        (["python", "-m", "aio.deepspeed", "a.py"], 1, []),
        (["python", "-maio.deepspeed", "a.py", "b"], 2, []),
        (["python", "-u", "-X", "dev", "-m", "aio.deepspeed", "a.py"], 1, ["-u", "-X", "dev"]),
        (["python", "-um", "aio.deepspeed", "a.py"], 1, ["-u"]),
        (["python", "-Wd", "-umaio.deepspeed", "-m", "a"], 2, ["-Wd", "-u"]),
    ],
)
def test_options_of_the_interpreter(original: list[str], program: int, options: list[str]) -> None:
    assert interpreter_options(original, program) == options
