"""Every input that fuzzing has found worth keeping still passes: the corpus of make fuzz.

The fuzzers themselves need clang; here any compiler builds their targets, with a loop over files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from support import cpp_build
from support.child import child_answer
from tests.fuzz import parsers
from tests.fuzz.targets import CORPUS, CXX_TARGETS, ROOT


@pytest.fixture(scope="module")
def executables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of every target: under the sanitizers where the compiler has them."""
    sanitize = "address,undefined"
    try:
        cpp_build.skip_without_tools(sanitize, tmp_path_factory.mktemp("sanitizer"))
    except pytest.skip.Exception:
        sanitize = "none"
        cpp_build.skip_without_tools(sanitize, tmp_path_factory.mktemp("sanitizer"))
    return cpp_build.executables("fuzz", "DRIVER=replay", f"SANITIZE={sanitize}")


def kept(target: str) -> list[Path]:
    files = sorted((CORPUS / target).iterdir())
    assert files, "an empty corpus"
    return files


@pytest.mark.cpp
@pytest.mark.parametrize("target", CXX_TARGETS)
def test_kept_inputs_of(executables: dict[str, str], target: str) -> None:
    files = map(str, kept(target))
    done = cpp_build.run(executables[f"fuzz_{target}"], *files, cwd=CORPUS)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr[-4000:]}"


# Settings are read once in a process: only one that has read none yet can try them all.
PARSE = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.fuzz import parsers
reached = set()
inputs = [file.read_bytes() for file in sorted(Path(sys.argv[2]).iterdir())]
for data in [*inputs, *parsers.seeds()]:
    if parsers.check(data):
        reached.add(data[0] % parsers.MOST_PARSERS)
print(json.dumps(sorted(reached)))
"""


def test_kept_inputs_of_parsers() -> None:
    reached = child_answer(PARSE, ROOT, kept("python")[0].parent)
    assert reached == list(range(len(parsers.PARSERS)))


def test_a_wrong_parser_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it returns wrongly, what it raises wrongly, and what it refuses without a word."""

    def kibibytes(text: str) -> int:
        if "G" in text:
            raise KeyError(text)
        if "M" in text:
            raise argparse.ArgumentTypeError
        return 4 << 20

    monkeypatch.setattr(parsers, "size", kibibytes)
    place = bytes([[parser.name for parser in parsers.PARSERS].index("size")])
    for text, error in ((b"1G", KeyError), (b"1M", AssertionError), (b"8192K", AssertionError)):
        with pytest.raises(error):
            parsers.check(place + text)
