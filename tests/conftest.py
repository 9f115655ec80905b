"""Fixtures shared by the tests: where files lie, which engine runs, handles that close."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.counted import write_counters_at_any_exit
from support.faulty_build import SANITIZED
from support.faulty_watch import IN_CHILD
from support.mounts import file_system_of
from support.sanitizers import examples, one_of_each

# What ds_nvme_tune has found for this machine's drives must not change what tests see.
os.environ["DEEPNVME_PROFILES"] = "off"

ENGINES = ("io_uring", "libaio", "posix")
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")

# No deadline: a test fails for what happened, never for how long it took.  Fixtures that live for
# one test are shared by its examples on purpose; an example that needs a fresh file makes one.
settings.register_profile(
    "deepnvme",
    deadline=None,
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("deepnvme")


write_counters_at_any_exit()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a shell, which has it, and so every child, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not SANITIZED or IN_CHILD:  # the child of a fault-injection test is told what to run
        return
    chosen = one_of_each(items)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]
    for item in items:
        for marker in item.iter_markers("not_sanitized"):
            item.add_marker(pytest.mark.skip(reason=f"not under sanitizers: {marker.args[0]}"))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # so that collecting before each test looks only at what tests have made


@pytest.fixture(autouse=True)
def _no_garbage_of_earlier_tests() -> None:
    """What an earlier test held in cycles, such as a traceback's, would go in the middle of this
    one, and change the counters that it compares.
    """
    gc.collect()


@pytest.fixture
def own_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles are looked for, and are those of the test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("DEEPNVME_PROFILES")
    monkeypatch.delenv("DEEPNVME_BACKEND", raising=False)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Two threads for a thousand elements wait for each other longer than they compute."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty directory on a file system that is backed by a drive."""
    for base in (tmp_path, Path(os.environ.get("DEEPNVME_TEST_DIR", "/var/tmp")), Path.cwd()):
        if base.is_dir() and file_system_of(base) not in MEMORY_FILE_SYSTEMS:
            made = Path(tempfile.mkdtemp(prefix="deepnvme-", dir=base))
            try:
                yield made
            finally:
                shutil.rmtree(made, ignore_errors=True)
            return
    pytest.skip("no writable directory on a drive: set DEEPNVME_TEST_DIR")


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    """An empty directory in memory."""
    base = Path("/dev/shm")
    if not base.is_dir() or not os.access(base, os.W_OK) or file_system_of(base) != "tmpfs":
        pytest.skip("no writable tmpfs at /dev/shm")
    made = Path(tempfile.mkdtemp(prefix="deepnvme-", dir=base))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(params=["disk", "tmpfs"])
def directory(request: pytest.FixtureRequest) -> Path:
    """An empty directory, once on each kind of storage."""
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture(params=ENGINES)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of each engine; those that cannot run here are skipped with the library's own
    reason.
    """
    import _deepnvme
    import aio

    name: str = request.param
    if name not in aio.available_backends():
        reasons = {found["name"]: found["reason"] for found in _deepnvme.io.probe()}
        pytest.skip(f"{name} cannot run here: {reasons.get(name, 'not known to this build')}")
    return name


@pytest.fixture
def make_handle() -> Iterator[Callable[..., Any]]:
    """``make_handle(backend=None, **options)``: an ``aio_handle`` that is closed when the test
    ends.
    """
    import aio

    made: list[Any] = []

    def make(backend: str | None = None, **options: Any) -> Any:
        handle = aio.aio_handle(backend=backend, **options)
        made.append(handle)
        return handle

    yield make
    for handle in reversed(made):
        handle.close()


@pytest.fixture
def handle(backend: str, make_handle: Callable[..., Any]) -> Any:
    """One handle for all examples of a test; its blocks are small, so that small tensors are many.

    A context of libaio takes milliseconds to destroy, so a handle for each example would be slow.
    """
    return make_handle(backend, block_size=16384)
