"""The table of `make coverage`, a row a folder: python.json is of coverage, cpp.json of gcovr."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any


@dataclass
class Reached:
    """Of how many there are."""

    lines: int = 0
    all_lines: int = 0
    branches: int = 0
    all_branches: int = 0

    def add(self, other: Reached) -> None:
        self.lines += other.lines
        self.all_lines += other.all_lines
        self.branches += other.branches
        self.all_branches += other.all_branches


def of_python(report: dict[str, Any]) -> Iterator[tuple[str, Reached]]:
    for file, found in report["files"].items():
        total = found["summary"]
        yield (
            file,
            Reached(
                total["covered_lines"],
                total["num_statements"],
                total["covered_branches"],
                total["num_branches"],
            ),
        )


def of_cpp(report: dict[str, Any]) -> Iterator[tuple[str, Reached]]:
    for file in report["files"]:
        yield (
            file["filename"],
            Reached(
                file["line_covered"],
                file["line_total"],
                file["branch_covered"],
                file["branch_total"],
            ),
        )


def percent(some: int, whole: int) -> str:
    return f"{100 * some / whole:.1f} %" if whole else "-"


def main(python_report: str, cpp_report: str) -> None:
    languages = {
        "Python": of_python(json.loads(Path(python_report).read_text())),
        "C++": of_cpp(json.loads(Path(cpp_report).read_text())),
    }
    print(f"{'':30}{'lines':>8}{'reached':>10}{'branches':>10}{'reached':>10}")
    for language, files in languages.items():
        folders: dict[str, Reached] = defaultdict(Reached)
        for file, reached in files:
            folders[PurePosixPath(file).parent.as_posix()].add(reached)
            folders[f"all {language}"].add(reached)
        # The sum last: its name would be in front of those of the folders.
        for name in sorted(folders, key=lambda name: (name.startswith("all "), name)):
            row = folders[name]
            lines = percent(row.lines, row.all_lines)
            branches = percent(row.branches, row.all_branches)
            print(f"{name:30}{row.all_lines:8}{lines:>10}{row.all_branches:10}{branches:>10}")


if __name__ == "__main__":
    main(*sys.argv[1:])
