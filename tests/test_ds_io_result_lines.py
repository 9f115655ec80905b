"""ds_io prints the lines that scripts parse; each number follows from bytes and time."""

from __future__ import annotations

import re

import pytest

from aio.ds_io.run import Loop
from aio.ds_io.worker import Part
from support.ds_io import MIB, DsIo

pytest_plugins = ["support.ds_io_fixture"]

GIB = 1024**3  # what DeepSpeed's lines call a GB
LINE = r"^(Task|E2E) {name} (Latency = [\d.e-]+ sec|Speed = [\d.e-]+ GB/sec)$"


@pytest.mark.parametrize("engine", ["aio_handle", "aio_basic", "torch_io", "torch_fastio"])
@pytest.mark.parametrize("name", ["Read", "Write"])
def test_four_lines_in_deepspeeds_order(ds_io: DsIo, engine: str, name: str) -> None:
    if (engine, name) == ("torch_fastio", "Read"):
        pytest.skip("torch_fastio writes only, as in DeepSpeed")
    reading = ["--read"] if name == "Read" else []
    run = ds_io.measure("--io_size", "3M", "--engine", engine, "--fast_io_size", "1M", *reading)
    found = re.findall(LINE.format(name=name), run.out, re.MULTILINE)
    kinds = [(who, what.split()[0]) for who, what in found]
    assert kinds == [("Task", "Latency"), ("Task", "Speed"), ("E2E", "Latency"), ("E2E", "Speed")]
    for who in ("Task", "E2E"):
        expected = 3 * 3 * MIB / GIB / run.seconds(f"{who} {name}")
        assert run.metric(f"{who} {name} Speed") == pytest.approx(expected)


def test_speed_is_the_sum_over_processes(ds_io: DsIo) -> None:
    run = ds_io.measure("--io_size", "1M", "--multi_process", 2, "--loops", 2, "--read")
    loops = [loop for loop in run.json["loops"] if loop["counted"]]
    assert [len(loop["processes"]) for loop in loops] == [2, 2]
    together = sum(loop["seconds"] for loop in loops)
    assert run.seconds("E2E Read") == pytest.approx(together)
    assert run.metric("E2E Read Speed") == pytest.approx(4 * MIB / GIB / together)
    own = [sum(loop["processes"][rank]["seconds"] for loop in loops) for rank in range(2)]
    assert run.seconds("Task Read") == pytest.approx(max(own))
    assert together >= max(own) * 0.999


def test_a_loop_lasts_from_the_first_start_to_the_last_end() -> None:
    parts = [
        Part(start, end, 0.5, {"direct": nbytes, "buffered": 1}, "fresh", None, "", None)
        for start, end, nbytes in ((2.0, 5.0, 10), (1.0, 3.0, 20))
    ]
    loop = Loop(True, parts)
    assert loop.seconds == 4.0
    assert [part.seconds for part in parts] == [3.0, 2.0]
    assert (loop.nbytes, loop.moved) == (32, {"direct": 30, "buffered": 2})


@pytest.mark.parametrize(("flags", "counted"), [((), 2), (("--include_warmup_time",), 5)])
def test_warm_up_counts_only_when_asked(ds_io: DsIo, flags: tuple[str, ...], counted: int) -> None:
    run = ds_io.measure("--io_size", "1M", "--loops", 2, "--warmup_loops", 3, *flags)
    assert [loop["counted"] for loop in run.json["loops"]] == [counted == 5] * 3 + [True] * 2
    assert run.json["results"]["bytes"] == counted * MIB
    seconds = sum(loop["seconds"] for loop in run.json["loops"][5 - counted :])
    assert run.seconds("E2E Write") == pytest.approx(seconds)


def test_every_number_says_what_it_is(ds_io: DsIo) -> None:
    run = ds_io.measure("--io_size", "1M")
    assert run.told("unit") == "GB = 1024^3 bytes (GiB)"
    assert run.told("bytes") == f"{3 * MIB} completed of {3 * MIB} asked"
    assert run.told("memory") == "page-locked"
    assert run.told("file").startswith("overwrite")
    for label in ("engine", "path", "durability", "counted"):
        assert run.told(label)
