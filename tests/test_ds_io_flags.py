"""Every flag of ds_io reaches what it names: the handle, the files, the memory or the loop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import aio
import pinned_manager
from aio.ds_io.options import Options, parse, parser
from support.ds_io import MIB, DsIo

pytest_plugins = ["support.ds_io_fixture"]

# deepspeed/nvme/ds_aio_args.py of DeepSpeed 0.19.
DEEPSPEEDS = """
    --folder --folder_to_device_mapping --io_size --fast_io_size --read --multi_process
    --block_size --queue_depth --single_submit --sequential_requests --validate --engine --loops
    --io_parallel --gpu --use_gds --slow_bounce_buffer --torch_legacy_save
    --use_accelerator_pin_memory --warmup_loops --include_warmup_time
    --different_file_each_iteration
"""


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], Any]]:
    """The arguments and the backend of every handle that is made from now on."""
    made: list[tuple[tuple[Any, ...], Any]] = []
    real = aio.aio_handle

    def make(*arguments: Any, backend: Any) -> Any:
        made.append((arguments, backend))
        return real(*arguments, backend=backend)

    monkeypatch.setattr(aio, "aio_handle", make)
    return made


def test_deepspeeds_flags_are_all_there() -> None:
    ours = {flag for action in parser()._actions for flag in action.option_strings}
    assert set(DEEPSPEEDS.split()) <= ours
    assert {"--backend", "--json", "--fio", "--fsync"} <= ours


def test_defaults_are_deepspeeds(disk: Path) -> None:
    options = parse(["--folder", str(disk), "--io_size", "400M"])
    assert options.io_size == 400 * MIB
    assert (options.block_size, options.queue_depth, options.fast_io_size) == (MIB, 32, 64 * MIB)
    assert (options.loops, options.warmup_loops, options.engine) == (3, 1, "aio_handle")
    assert (options.folders, options.direction) == ((disk,), "write")
    false = ("single_submit", "sequential_requests", "validate", "include_warmup_time", "fsync")
    assert not any(getattr(options, name) for name in false)


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ((), (MIB, 32, False, True, 1)),
        (("--block_size", "64K"), (65536, 32, False, True, 1)),
        (("--queue_depth", 4), (MIB, 4, False, True, 1)),
        (("--single_submit",), (MIB, 32, True, True, 1)),
        (("--sequential_requests",), (MIB, 32, False, False, 1)),
        (("--io_parallel", 2), (MIB, 32, False, True, 2)),
    ],
)
def test_options_of_the_handle(
    ds_io: DsIo, handles: list[Any], flags: tuple[object, ...], arguments: tuple[object, ...]
) -> None:
    ds_io.measure("--io_size", "1M", "--loops", 1, *flags)
    assert [made for made, _ in handles] == [arguments]


def test_backend(ds_io: DsIo, handles: list[Any], backend: str) -> None:
    run = ds_io.measure("--io_size", "1M", "--loops", 1, "--backend", backend)
    assert [name for _, name in handles] == [backend]
    assert f"on {backend}:" in run.told("engine")


def test_the_environment_names_the_backend_too(
    ds_io: DsIo, handles: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPNVME_BACKEND", "posix")
    ds_io.measure("--io_size", "1M", "--loops", 1)
    assert [name for _, name in handles] == ["posix"]


@pytest.mark.parametrize(
    ("engine", "call"), [("aio_handle", "async_pwrite"), ("aio_basic", "sync_pwrite")]
)
def test_engine_chooses_the_call(
    ds_io: DsIo, monkeypatch: pytest.MonkeyPatch, engine: str, call: str
) -> None:
    calls = []

    def recorded(name: str) -> Any:
        real = getattr(aio.aio_handle, name)

        def record(handle: Any, *arguments: Any) -> Any:
            calls.append(name)
            return real(handle, *arguments)

        return record

    for name in ("async_pwrite", "sync_pwrite"):
        monkeypatch.setattr(aio.aio_handle, name, recorded(name))
    ds_io.measure("--io_size", "1M", "--loops", 2, "--engine", engine)
    assert calls == [call] * 3


@pytest.mark.parametrize("flags", [(), ("--different_file_each_iteration",)])
def test_files_of_the_loops(
    ds_io: DsIo, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    written = []
    real = aio.aio_handle.async_pwrite

    def record(handle: Any, tensor: Any, path: str, offset: int = 0) -> int:
        written.append((Path(path).name, os.path.exists(path)))
        return real(handle, tensor, path, offset)

    monkeypatch.setattr(aio.aio_handle, "async_pwrite", record)
    run = ds_io.measure("--io_size", "1M", *flags)
    names, existed = zip(*written, strict=True)
    assert len(names) == 4
    assert len(set(names)) == (4 if flags else 1)
    assert list(existed) == ([False] * 4 if flags else [False, True, True, True])
    assert run.told("file").startswith("fresh" if flags else "overwrite")


def test_folders_of_the_processes(ds_io: DsIo, tmpfs: Path, disk: Path) -> None:
    pairs = (f"{disk}:0", f"{tmpfs}:1")
    run = ds_io.measure(
        "--io_size", "1M", "--loops", 1, "--folder_to_device_mapping", *pairs, where=False
    )
    assert f"[0]: process 0 <----> {disk} (" in run.out
    assert f"[1]: process 1 <----> {tmpfs} (tmpfs on" in run.out
    assert "tmpfs: memory, no drive" in run.told("path")
    assert list(tmpfs.iterdir()) == []


def test_a_mapping_may_be_given_piece_by_piece(disk: Path) -> None:
    flag = "--folder_to_device_mapping"
    options = parse([flag, f"{disk}:3", flag, f"{disk}:1", f"{disk}:2", "--io_size", "1M"])
    assert options.folders == (disk,) * 3
    assert options.devices == (3, 1, 2)


@pytest.mark.parametrize("flags", [(), ("--torch_legacy_save",)])
@pytest.mark.parametrize("engine", ["torch_io", "torch_fastio"])
def test_format_of_torch_save(
    ds_io: DsIo, monkeypatch: pytest.MonkeyPatch, engine: str, flags: tuple[str, ...]
) -> None:
    zipped = []
    real = torch.save

    def save(*arguments: Any, _use_new_zipfile_serialization: bool) -> None:
        zipped.append(_use_new_zipfile_serialization)
        real(*arguments, _use_new_zipfile_serialization=_use_new_zipfile_serialization)

    monkeypatch.setattr(torch, "save", save)
    ds_io.measure("--io_size", "1M", "--engine", engine, "--loops", 1, "--validate", *flags)
    assert zipped == [not flags] * 2


def test_size_of_the_buffer_of_torch_fastio(ds_io: DsIo, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    real = aio.aio_handle.submit_pwrite

    def record(handle: Any, tensor: Any, *where: Any) -> Any:
        sizes.append(tensor.nbytes)
        return real(handle, tensor, *where)

    monkeypatch.setattr(aio.aio_handle, "submit_pwrite", record)
    ds_io.measure("--io_size", "3M", "--engine", "torch_fastio", "--fast_io_size", "1M")
    assert max(sizes) == MIB // 2
    assert sum(sizes) > 4 * 3 * MIB


def test_accelerator_pins(ds_io: DsIo, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ds_io.measure("--io_size", "1M", "--loops", 1, "--use_accelerator_pin_memory")
    assert run.told("memory").startswith("not page-locked")
    monkeypatch.setenv("DS_PIN_MEMORY_BACKEND", "native")
    run = ds_io.measure("--io_size", "1M", "--loops", 1, "--use_accelerator_pin_memory")
    assert run.told("memory") == "page-locked"
    assert pinned_manager.pinned_stats()["in_use"] == 0


def test_fields_of_the_options_are_those_of_the_command_line() -> None:
    renamed = {"folder": "folders", "folder_to_device_mapping": "devices", "read": "reading"}
    left_out = {"help", "use_gds", "multi_process"}
    given = {renamed.get(action.dest, action.dest) for action in parser()._actions} - left_out
    assert given == set(Options.__annotations__)
