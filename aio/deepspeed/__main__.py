"""``python -m aio.deepspeed script.py ...``: a program as it is, with DeepSpeed on this engine.

What follows is what would follow ``python``: a script with its arguments, or -m module, or -c code.
The same holds in the Python processes that it starts, such as those of DeepSpeed's launcher.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

BOOTSTRAP = Path(__file__).with_name("bootstrap")
VARIABLE = "DEEPNVME_DEEPSPEED"
USAGE = f"""usage: python -m aio.deepspeed [-m module | -c code | script.py] [arguments]
Run a program with DeepSpeed on this engine; {VARIABLE}=0 leaves DeepSpeed as it is."""


def wanted() -> bool:
    """False where DEEPNVME_DEEPSPEED is 0; ValueError for anything but 0, 1 and nothing."""
    value = os.environ.get("DEEPNVME_DEEPSPEED", "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} is {value!r}; it must be 1 (the default) or 0")
    return value != "0"


def interpreter_options(original: Sequence[str], arguments: int) -> list[str]:
    """What stood between ``python`` and ``-m aio.deepspeed``, such as -u or -X dev.

    ``original`` is sys.orig_argv, whose last ``arguments`` are the program's.
    """
    before = list(original[1 : len(original) - arguments])
    last = before.pop()
    name = "aio.deepspeed"
    switch = last[: -len(name)] if last.startswith("-") else before.pop()  # -m may be joined to it
    flags = switch[:-1]  # -um is -u with -m
    return before if flags == "-" else [*before, flags]


def main() -> NoReturn:
    """Become the program: exec, so that signals and the exit status are its own."""
    program = sys.argv[1:]
    if not program or program[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if program else sys.stderr)
        sys.exit(0 if program else 2)
    if sys.flags.ignore_environment or sys.flags.no_site:
        sys.exit(
            "python -m aio.deepspeed works through PYTHONPATH, which -I, -E and -S turn off: leave "
            "them out, or call aio.deepspeed.enable() in the program"
        )
    if wanted():
        path = [str(BOOTSTRAP), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
        os.environ[VARIABLE] = "1"
    command = [sys.executable, *interpreter_options(sys.orig_argv, len(program)), *program]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
