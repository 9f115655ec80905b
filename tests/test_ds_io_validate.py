"""--validate compares every byte by a read of its own, and finds one that is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from aio.ds_io.compare import compare_file
from aio.ds_io.engines import Engine, HandleEngine
from aio.ds_io.torch_engine import TorchEngine
from aio.measure.harness import BenchError
from support.counters import counters
from support.ds_io import MIB, DsIo

pytest_plugins = ["support.ds_io_fixture"]

ALL = [
    ("aio_handle", ""), ("aio_handle", "--read"), ("aio_basic", ""), ("aio_basic", "--read"),
    ("torch_io", ""), ("torch_io", "--read"), ("torch_fastio", ""),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "reading"), ALL)
@pytest.mark.parametrize("nbytes", [1, MIB + 4097])
def test_what_is_right_passes(ds_io: DsIo, engine: str, reading: str, nbytes: int) -> None:
    flags = filter(None, ["--validate", reading])
    run = ds_io.measure("--io_size", nbytes, "--engine", engine, "--fast_io_size", "64K", *flags)
    assert run.told("bytes").endswith("every one compared")
    assert run.json["results"]["validated"] is True


@pytest.mark.parametrize(("engine", "reading"), ALL)
def test_one_wrong_byte_is_found(
    ds_io: DsIo, monkeypatch: pytest.MonkeyPatch, engine: str, reading: str
) -> None:
    kind = TorchEngine if engine.startswith("torch") else HandleEngine
    real: Any = kind.transfer

    def harm(this: Any, loop: int) -> None:
        real(this, loop)
        if loop == 2 and reading:
            tensor = this._tensor if kind is HandleEngine else this._loaded
            tensor[MIB // 2] ^= 1
        elif loop == 2:
            data = bytearray(this.path(loop).read_bytes())
            data[MIB // 2] ^= 1
            this.path(loop).write_bytes(data)

    monkeypatch.setattr(kind, "transfer", harm)
    flags = ("--io_size", "1M", "--engine", engine, *filter(None, [reading]))
    ds_io.measure(*flags)  # nobody looks without --validate
    words = ds_io.refuse(1, *flags, "--validate")
    assert f"differ from byte {MIB // 2}" in words or "not the one saved" in words


@pytest.mark.parametrize("reading", ["", "--read"])
def test_what_an_earlier_loop_left_does_not_pass(
    ds_io: DsIo, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    """A transfer that does nothing leaves the right bytes in place, but for the spoiling."""
    real, account = HandleEngine.transfer, HandleEngine.account
    last: list[dict[str, int]] = []

    def once(this: HandleEngine, loop: int) -> None:
        if loop == 0:
            real(this, loop)

    def repeat(this: HandleEngine, loop: int) -> dict[str, int]:
        if loop == 0:
            last.append(account(this, loop))
        return last[0]

    monkeypatch.setattr(HandleEngine, "transfer", once)
    monkeypatch.setattr(HandleEngine, "account", repeat)
    flags = filter(None, ["--validate", reading])
    assert "differ from byte 0" in ds_io.refuse(1, "--io_size", "1M", *flags)


@pytest.mark.parametrize("place", [0, 1, 4095, (16 << 20) - 1, 16 << 20, (16 << 20) + 4])
def test_the_place_of_the_first_difference(tmp_path: Path, place: int) -> None:
    tensor = torch.zeros((16 << 20) + 5, dtype=torch.uint8)
    path = tmp_path / "file"
    path.write_bytes(tensor.numpy().tobytes())
    compare_file(tensor, path)
    tensor[place:] = 1
    with pytest.raises(BenchError, match=f"differ from byte {place}$"):
        compare_file(tensor, path)


@pytest.mark.parametrize("nbytes", [0, 4095, 4097])
def test_another_size(tmp_path: Path, nbytes: int) -> None:
    (tmp_path / "file").write_bytes(bytes(nbytes))
    with pytest.raises(BenchError, match=f"{nbytes} bytes long, not 4096"):
        compare_file(torch.zeros(4096, dtype=torch.uint8), tmp_path / "file")


@pytest.mark.parametrize("lost", [0, 1])
def test_a_file_that_is_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """And one that was cut meanwhile, whose size was right when it was asked."""
    tensor = torch.arange(4096).to(torch.uint8)
    path = tmp_path / "file"
    path.write_bytes(tensor.numpy().tobytes())
    read = os.preadv

    def short(descriptor: int, buffers: Any, offset: int) -> int:
        if offset == 3000:
            os.truncate(path, 4096 - lost)
        return read(descriptor, [buffers[0][:1000]], offset)

    monkeypatch.setattr(os, "preadv", short)
    with counters():
        if lost:
            with pytest.raises(BenchError, match=r"file: ends at byte 4095 of 4096$"):
                compare_file(tensor, path)
        else:
            compare_file(tensor, path)


@pytest.mark.parametrize("reading", ["", "--read"])
def test_a_tensor_that_somebody_has_replaced(
    ds_io: DsIo, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    """Told without --validate too, since there is no throughput in what was not moved."""
    real = TorchEngine.transfer

    def replace(this: TorchEngine, loop: int) -> None:
        if not reading:
            real(this, loop)
        torch.save(torch.zeros(1000, dtype=torch.uint8), this.path(loop))
        if reading:
            real(this, loop)

    monkeypatch.setattr(TorchEngine, "transfer", replace)
    flags = filter(None, [reading])
    words = ds_io.refuse(1, "--io_size", "1M", "--engine", "torch_io", *flags)
    assert (f"1000 of {MIB} bytes loaded" if reading else f"cannot hold {MIB}") in words


def test_every_engine_has_a_check() -> None:
    assert {kind.check for kind in (HandleEngine, TorchEngine)}.isdisjoint({Engine.check})
