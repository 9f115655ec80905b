"""The tables of docs/reliability.md name tests that exist, and tests that name what they guard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
TEXT = (TESTS.parent / "docs" / "reliability.md").read_text()
KIND = re.compile(r"\b[A-H]-\d\d\b")
NAME = re.compile(r"`((?:\w+/)*test_\w+\.(?:py|cpp))`")
ROWS = {
    row[1]: NAME.findall(row[0])
    for row in re.finditer(r"^\| ([A-H]-\d\d) \|.*$", TEXT, re.MULTILINE)
}


def first_words(file: Path) -> str:
    """The docstring of a Python file, or the comment that a C++ file begins with."""
    pattern = r'"""(.*?)"""' if file.suffix == ".py" else r"((?://.*\n)*)"
    found = re.match(pattern, file.read_text(), re.DOTALL)
    return found[1] if found else ""


FILES = {
    file.relative_to(TESTS).as_posix(): file
    for file in [*TESTS.glob("test_*.py"), *TESTS.glob("cpp/test_*.cpp")]
}
CLAIMED = {name: set(KIND.findall(first_words(file))) for name, file in FILES.items()}


def test_every_test_that_is_named_exists() -> None:
    named = set(NAME.findall(TEXT))
    assert len(named) > 80
    assert sorted(name for name in named if not (TESTS / name).is_file()) == []


def test_the_catalogue_is_whole() -> None:
    assert list(ROWS) == sorted(ROWS)
    assert len(ROWS) == len(re.findall(r"^\| [A-H]-\d\d \|", TEXT, re.MULTILINE))
    for kind, tests in ROWS.items():
        row = re.search(rf"^\| {kind} \|.*$", TEXT, re.MULTILINE)
        assert tests or (row and "not promised" in row[0]), kind


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_and_its_tests_name_each_other(kind: str) -> None:
    claim = {name for name, kinds in CLAIMED.items() if kind in kinds}
    assert claim == set(ROWS[kind])


def test_what_tests_claim_has_a_row() -> None:
    assert set().union(*CLAIMED.values()) - set(ROWS) == set()
