"""The report opens from disk without a network, and has the numbers of the JSON."""

from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aio.measure.sizes import GIB
from aio.options import HandleOptions
from aio.tune.charts import bar_chart, line_chart
from aio.tune.report import page
from aio.tune.session import Deadline, Session
from aio.tune.space import usual_options
from aio.tune.summary import document
from support.tuning import FakeDrive

VOID = {"meta", "br"}
LOADING = {"src", "href", "xlink:href", "data", "action", "srcset", "poster"}


class Reader(HTMLParser):
    """Text, and every attribute that makes a browser load something; tags must nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.found: Any = None
        self.svgs = 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert LOADING.isdisjoint(name for name, _ in attrs), (tag, attrs)
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        if tag == "script":
            assert attrs == [("type", "application/json"), ("id", "found")]
        self.svgs += tag == "svg"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.found = json.loads(data)
        elif self.open and self.open[-1] != "style":
            self.words.append(data)


def tuning(directory: str = "/mnt/nvme", directions: tuple[str, ...] = ("read", "write")) -> Any:
    drive = FakeDrive(
        lambda way, options: 3e9 + options.block_size + 1e6 * options.queue_depth,
        cpu=lambda way, options: 1e-11 * options.intra_op_parallelism,
    )
    deadline = Deadline(90, drive.clock)
    found = Session(drive, directions, usual_options("posix"), ["posix"], deadline).run()
    machine = {
        "date": "2026-01-02", "cpu": "CPU", "cores": 2, "kernel": "6.1", "aio": "1", "command": "x",
    }  # fmt: skip
    against = {
        "engine": "libaio", "ours": 3e9, "fio": 2.5e9, "ours_cpu": 1e-11, "fio_cpu": 2e-11,
        "rounds": 5,
    }  # fmt: skip
    values = document(
        found,
        machine=machine,
        folders=[{"directory": directory, "file_system": "ext4"}],
        described="400 MiB of each file",
        fio={direction: against for direction in directions},
        fio_missing="",
    )
    return json.loads(json.dumps(values))


@pytest.mark.parametrize("directions", [("read", "write"), ("read",), ("write",)])
def test_the_page_has_the_numbers_of_the_json(directions: tuple[str, ...]) -> None:
    found = tuning(directions=directions)
    reader = Reader(page(found))
    assert reader.found == found
    assert reader.svgs == 4 * len(directions)
    text = " ".join(reader.words)
    for direction in directions:
        for entry in found["directions"][direction]["final"]:
            assert f"{entry['bytes_per_second'] / GIB:.3f}" in text
            assert f"{entry['cpu_seconds_per_gib']:.4f}" in text
        for entry in found["directions"][direction]["searches"][0]["candidates"]:
            name = f"queue depth {entry['options']['queue_depth']}"
            assert f"{name}: {entry['bytes_per_second'] / GIB:.4g} GB/s" in text
    assert "1.20 of fio" in text
    assert '"intra_op_parallelism"' in text


def test_nothing_is_loaded() -> None:
    text = page(tuning())
    assert "://" not in text
    assert not re.search(r"@import|url\(|javascript:|onload", text)


def test_without_fio_the_reason_is_said() -> None:
    found = {**tuning(), "fio": {}, "fio_missing": "fio is not installed"}
    assert "Not compared with fio: fio is not installed" in " ".join(Reader(page(found)).words)


@pytest.mark.parametrize("name", ["</script><b>", "<!--", "&amp;'\"", "\N{SNOWMAN}\n"])
def test_names_cannot_break_the_page(name: str) -> None:
    found = tuning(f"/mnt/{name}")
    reader = Reader(page(found))
    assert reader.found == found
    assert f"/mnt/{name}: ext4" in "".join(reader.words)


@given(
    lines=st.dictionaries(
        st.text(min_size=1, max_size=3),
        st.lists(st.none() | st.floats(0, 1e12), min_size=3, max_size=3),
        max_size=8,
    ),
    logarithmic=st.booleans(),
)
def test_lines_of_any_values(lines: dict[str, list[float | None]], logarithmic: bool) -> None:
    """Every point is in the picture, higher values are not lower, and None leaves a point out."""
    text = line_chart("t", "ms", ["a", "b", "c"], lines, logarithmic)
    Reader(text)
    dots = re.findall(r'<circle class="dot c\d" cx="([\d.]+)" cy="([\d.]+)"', text)
    values = [value for line in lines.values() for value in line if value is not None]
    assert len(dots) == len(values)
    places = [float(y) for _, y in dots]
    assert all(0 <= y <= 300 for y in places)
    pairs = sorted(zip(values, places, strict=True))
    assert all(low[1] >= high[1] - 0.11 for low, high in itertools.pairwise(pairs))


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.floats(0, 1e12), max_size=8))
def test_bars_of_any_values(bars: dict[str, float]) -> None:
    text = bar_chart("t", "GB/s", bars)
    Reader(text)
    tall = [float(height) for height in re.findall(r'height="([\d.]+)" rx', text)]
    assert len(tall) == len(bars)
    pairs = sorted(zip(bars.values(), tall, strict=True))
    assert all(low[1] <= high[1] + 0.11 for low, high in itertools.pairwise(pairs))


def test_options_come_back_from_the_json() -> None:
    found = tuning()
    assert HandleOptions(**found["both"]).as_dict() == found["both"]
