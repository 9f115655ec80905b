"""Peers do the same work or are named: no cached read, no unsynced write (H-01, H-04)."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from aio.measure.harness import BenchError, Contestant, Sample
from benchmarks import kvikio_peer, peers, report, safetensors_peer, tensornvme_peer, torch_peer
from benchmarks.conditions import PeerError, cold, durable, fresh
from benchmarks.layout import refuse_other, state_dict
from support.benchmarks import context
from support.files import cached_pages, contents

MIB = 1 << 20
SAMPLE = Sample(1.0, MIB, 0.5, 1, "page cache")


@pytest.fixture
def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kvikio", "tensornvme", "tensornvme._C", "safetensors", "safetensors.torch"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("no_peers")
def test_those_that_are_missing_are_named(disk: Path) -> None:
    result = peers.run(context(disk))
    assert set(result.missing) == {"DeepSpeed", "KvikIO", "TensorNVMe", "safetensors"}
    assert result.missing["DeepSpeed"] == "not asked for"
    works = dict.fromkeys(row.work for row in result.rows)
    assert len(works) == 4
    for row in result.rows:
        assert row.series.name in {
            "aio", "fio io_uring", "fio io_uring fixed", "Python", "Python, O_DIRECT",
            "torch.save, torch.load",
        }  # fmt: skip
        assert row.series.mode.endswith("; fsync") == row.work.startswith("write")
    table = report.markdown(result)
    assert table.count("\n") == 1 + len({row.series.name for row in result.rows})
    assert all(work in table for work in works)


def test_before_a_fresh_write_the_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()

    def run() -> Sample:
        assert not path.exists()
        return SAMPLE

    assert fresh(Contestant("one", run), path).run() == SAMPLE


def test_before_a_cold_read_the_cache_is_empty(disk: Path) -> None:
    path = disk / "file"
    path.write_bytes(bytes(MIB))

    def run() -> Sample:
        assert cached_pages(path)[0] == 0
        return SAMPLE

    assert cold(Contestant("one", run), path).run() == SAMPLE


def test_fsync_counts(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr("benchmarks.conditions.sync_file", synced.append)
    done = durable(Contestant("one", lambda: SAMPLE), disk).run()
    assert synced == [disk]
    assert done.seconds > SAMPLE.seconds
    assert done.mode == "page cache; fsync"


def test_a_peer_that_fails_later_leaves_the_others_their_figures(disk: Path) -> None:
    left = iter([SAMPLE])

    def flaky() -> Sample:
        for one in left:
            return one
        raise PeerError("two", "it lost bytes")

    ours = Contestant("aio", lambda: SAMPLE)
    result = peers.Result("peers", "")
    three = dataclasses.replace(context(disk), rounds=3)
    peers._measure(three, result, [ours, Contestant("two", flaky)], True, "x")
    assert [row.series.name for row in result.rows] == ["aio"]
    assert len(result.rows[0].series.kept) == 3
    assert result.missing == {"two, read 4 MiB, x": "it lost bytes"}


def test_torch_writes_and_reads_a_dict(tmp_path: Path) -> None:
    state, path = state_dict(3, 3 * 64 * 1024), tmp_path / "state"
    written = torch_peer.save(path, state).run()
    assert written.nbytes == 3 * 64 * 1024 == torch_peer.load(path, state).run().nbytes
    for name, tensor in torch.load(path, weights_only=True).items():
        assert torch.equal(tensor, state.tensors[name])


@pytest.mark.parametrize("place", [0, 8192, -1])
def test_a_dict_that_came_back_otherwise(tmp_path: Path, place: int) -> None:
    state = state_dict(2, 2 * 65536)
    refuse_other(state.tensors, state, tmp_path)
    other = {name: tensor.clone() for name, tensor in state.tensors.items()}
    other["layer.1.weight"][place] += 1
    with pytest.raises(BenchError, match=r"layer\.1\.weight has other bytes"):
        refuse_other(other, state, tmp_path)
    del other["layer.0.weight"]
    with pytest.raises(BenchError, match=r"layer\.0\.weight is missing"):
        refuse_other(other, state, tmp_path)


def test_safetensors(tmp_path: Path) -> None:
    if safetensors_peer.missing():
        pytest.skip(f"safetensors: {safetensors_peer.missing()}")
    state, path = state_dict(3, 3 * 65536), tmp_path / "state"
    assert safetensors_peer.save(path, state).run().nbytes == 3 * 65536
    assert safetensors_peer.load(path, state).run().mode == "page cache, mapped"


class FakeOffloader:
    """TensorNVMe's, as far as it is used; it drops `lost` bytes of each read, and says nothing."""

    lost = 0

    def __init__(self, path: str, depth: int, backend: str) -> None:
        self.path, self.places, self.end = Path(path), dict[str, int](), 0
        assert backend == "uring"
        self.path.touch()

    def async_write(self, tensor: torch.Tensor, key: str, callback: None) -> None:
        self.places[key] = self.end
        with self.path.open("r+b") as file:
            file.seek(self.end)
            file.write(tensor.numpy().tobytes())
        self.end += tensor.nbytes

    def async_read(self, tensor: torch.Tensor, key: str, callback: None) -> None:
        start = self.places.pop(key)
        data = contents(self.path)[start : start + tensor.nbytes - self.lost]
        octets = tensor.view(torch.uint8).reshape(-1)
        octets[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def sync_write_events(self) -> None:
        """Everything is done already."""

    sync_read_events = sync_write_events


@pytest.mark.parametrize("lost", [0, 1])
def test_tensornvme_is_believed_in_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    module = types.ModuleType("tensornvme._C")
    module.Offloader = FakeOffloader  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensornvme", types.ModuleType("tensornvme"))
    monkeypatch.setitem(sys.modules, "tensornvme._C", module)
    monkeypatch.setattr(FakeOffloader, "lost", lost)
    tensors = [torch.randn(4096), torch.randn(5000)]
    peer = tensornvme_peer.TensorNvme(tmp_path / "file", tensors, 32)
    assert peer.contestant(False).run().nbytes == 4 * 9096
    if lost:
        with pytest.raises(PeerError, match="other bytes"):
            peer.contestant(True).run()
    else:
        assert peer.contestant(True).run().nbytes == 4 * 9096


class FakeCuFile:
    """KvikIO's, with plain files; `short` bytes are missing from each transfer."""

    short = 0

    def __init__(self, path: Path | str, flags: str) -> None:
        self.path, self.writes = Path(path), flags == "w"

    def __enter__(self) -> FakeCuFile:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def pwrite(self, data: Any) -> FakeCuFile:
        assert self.writes
        self.path.write_bytes(data.tobytes())
        self.done = data.nbytes
        return self

    def pread(self, data: Any) -> FakeCuFile:
        assert not self.writes
        data[:] = memoryview(self.path.read_bytes())
        self.done = data.nbytes
        return self

    def get(self) -> int:
        return int(self.done) - self.short


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a KvikIO in place of the real one is set to."""
    settings: dict[str, Any] = {}
    module, defaults = types.ModuleType("kvikio"), types.ModuleType("kvikio.defaults")
    defaults.set = settings.update  # type: ignore[attr-defined]
    module.defaults = defaults  # type: ignore[attr-defined]
    module.CompatMode = types.SimpleNamespace(ON="on")  # type: ignore[attr-defined]
    module.CuFile = FakeCuFile  # type: ignore[attr-defined]
    module.__version__ = "0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvikio", module)
    monkeypatch.setitem(sys.modules, "kvikio.defaults", defaults)
    monkeypatch.setenv("KVIKIO_COMPAT_MODE", "")
    return settings


def test_kvikio_takes_its_posix_path(tmp_path: Path, kvikio: dict[str, Any]) -> None:
    assert kvikio_peer.missing(tmp_path) == ""
    tensor, path = torch.arange(200, dtype=torch.uint8), tmp_path / "file"
    assert kvikio_peer.large(path, tensor, reading=False).run().nbytes == 200
    assert contents(path) == bytes(range(200))
    tensor.zero_()
    kvikio_peer.large(path, tensor, reading=True).run()
    assert bytes(tensor.tolist()) == bytes(range(200))
    assert kvikio["compat_mode"] == "on"
    assert kvikio["auto_direct_io_read"]
    assert kvikio["auto_direct_io_write"]


def test_kvikio_that_is_short_or_has_no_driver(
    tmp_path: Path, kvikio: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeCuFile, "short", 1)
    tensor = torch.zeros(200, dtype=torch.uint8)
    with pytest.raises(PeerError, match="199 of 200 bytes"):
        kvikio_peer.large(tmp_path / "file", tensor, reading=False).run()

    def refuse(*_: object) -> None:
        raise RuntimeError("libcuda.so.1: cannot open shared object file\nmore")

    monkeypatch.setattr(FakeCuFile, "pwrite", refuse)
    assert kvikio_peer.missing(tmp_path) == (
        "0 moves no host memory here: libcuda.so.1: cannot open shared object file"
    )
