"""The command ``deepnvme``: ``deepnvme info``."""

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
    options = parser.parse_args(arguments)

    from aio.info import print_info  # here, so that --help needs no torch

    print_info(options.directories, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
