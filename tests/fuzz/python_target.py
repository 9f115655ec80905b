"""PARSERS under atheris, as tests/fuzz/targets.py starts it: with a FILE, or libFuzzer's options.

The packages below are followed, and the checks of PARSERS, which say what became of an input. An
extension built with -fsanitize=fuzzer-no-link is followed as well, where atheris is preloaded.
"""

from __future__ import annotations

import os
import sys

import atheris

with atheris.instrument_imports(include=["aio", "pinned_manager", "benchmarks", "tests.fuzz"]):
    from tests.fuzz.parsers import check


def one_input(data: bytes) -> int:
    return 0 if check(data) else -1  # -1: not to be kept


if __name__ == "__main__":
    # libFuzzer starts itself again to merge, by its first argument, which has to be a program.
    atheris.Setup([os.environ["FUZZ_PROGRAM"], *sys.argv[1:]], one_input)
    atheris.Fuzz()
