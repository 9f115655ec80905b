"""The command ``deepnvme``: ``deepnvme info``, ``deepnvme top``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog="deepnvme", description="Tensors to and from NVMe drives."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser(
        "info", help="what this machine offers: engines, memlock limit, file systems, drives"
    )
    info.add_argument(
        "directories", nargs="*", default=["."], help="directories to look at (default: this one)"
    )
    info.add_argument("--json", action="store_true", help="print JSON instead of tables")
    top = commands.add_parser(
        "top", help="what the handles of running processes do (those with DEEPNVME_TOP=1)"
    )
    top.add_argument("--pid", type=int, help="of this process only")
    top.add_argument("--once", action="store_true", help="print one interval and end")
    top.add_argument("--json", action="store_true", help="print JSON, a line for each interval")
    top.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between samples (1)"
    )
    options = parser.parse_args(arguments)

    if options.command == "top":
        from aio.top import print_top

        if not 0 < options.interval < 1e6:
            limits = "more than 0 and less than 1000000 seconds"
            top.error(f"--interval is {options.interval:g}, but must be {limits}")
        return print_top(options.pid, options.once, options.json, options.interval)

    from aio.info import print_info  # here, so that --help needs no torch

    print_info(options.directories, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
