"""Sizes as users type them: 400M and 1G, in units of 1024; what is no size is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio.measure.sizes import format_size, parse_size

UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
ENDINGS = {"": ("", "B"), **{unit: (unit, f"{unit}B", f"{unit}iB") for unit in "KMGT"}}


@given(
    number=st.integers(1, 8 * 1024**2 - 1),
    unit=st.sampled_from(sorted(UNITS)),
    zeros=st.integers(0, 30),
    data=st.data(),
)
def test_a_number_and_a_unit(number: int, unit: str, zeros: int, data: st.DataObject) -> None:
    ending = data.draw(st.sampled_from(ENDINGS[unit]))
    text = data.draw(st.sampled_from([ending, ending.lower(), ending.upper()]))
    assert parse_size(f" {'0' * zeros}{number}{text} ") == number * UNITS[unit]


@given(st.text(max_size=12))
def test_any_text_is_a_size_from_1_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert 1 <= parse_size(text) < 1 << 63


@pytest.mark.parametrize(
    "text", ["", "M", "1.5G", "-1", "1 M", "0", "0K", "1X", "17iB", "1KK", "\uff19",
             f"{1 << 63}", "8388608T",
             "9" * 5000]
)  # fmt: skip
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="give a") as refused:
        parse_size(text)
    assert repr(text) in str(refused.value)


def test_the_largest_size_is_that_of_a_file() -> None:
    assert parse_size(str((1 << 63) - 1)) == (1 << 63) - 1


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(17, "17 bytes"), (1024, "1 KiB"), (1536, "1.5 KiB"),
     (400 << 20, "400 MiB"), (3 << 40, "3.0 TiB")],
)  # fmt: skip
def test_sizes_as_one_reads_them(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text
