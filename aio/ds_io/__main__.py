"""The command ``ds_io``; exit status 0: measured, 1: failed, 2: cannot be done, 130: Ctrl-C."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from aio.ds_io.options import Options, parse
from aio.ds_io.report import as_json, lines
from aio.ds_io.run import Outcome, measure
from aio.ds_io.worker import FAILURES
from aio.measure.command import ended_by_signals, exit_status


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""

    def run() -> None:
        options = parse(given)
        with ended_by_signals():
            outcome = measure(options)
        _tell(options, outcome)

    return exit_status("ds_io", run, FAILURES, "its files are deleted")


def _tell(options: Options, outcome: Outcome) -> None:
    text = json.dumps(as_json(outcome), indent=1) if options.json else ""
    print(*lines(outcome), sep="\n", file=sys.stderr if options.json == "-" else sys.stdout)
    if options.json == "-":
        print(text)
    elif options.json:
        Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
