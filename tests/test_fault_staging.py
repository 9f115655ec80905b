"""More staged transfers than staging blocks, while submissions fail: all end, no block is lost."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aio
from support.buffers import pattern, shifted
from support.faulty_example import attempt, nothing_kept
from support.faulty_schedules import PHASES, SUBMITS, TRANSIENT, Schedule, faults
from support.faulty_watch import watch
from support.sanitizers import examples

pytest_plugins = ["support.faulty_process"]

BLOCK = 1 << 20
BLOCKS = 24  # Staging::default_bytes in blocks of this size
NBYTES = (BLOCKS + 3) * BLOCK + 4096
EXAMPLES = examples(10)


@pytest.fixture
def drive(disk: Path) -> Path:
    """A directory whose files need staging blocks for memory that is not aligned."""
    import _deepnvme

    (disk / "probe").write_bytes(bytes(4096))
    if not _deepnvme.io.file_alignment(disk / "probe")["direct"]:
        pytest.skip(f"{disk} takes no direct I/O: nothing is staged there")
    return disk


@settings(max_examples=EXAMPLES, phases=PHASES)
@given(
    submits=st.one_of(
        SUBMITS,
        st.lists(st.sampled_from([-errno.EIO, -errno.EAGAIN, 0]), min_size=30, max_size=300),
    ),
    write=st.booleans(),
)
def test_transfers_that_wait_for_a_block_are_started(
    drive: Path, backend: str, submits: list[int], write: bool
) -> None:
    watch()
    data = np.frombuffer(pattern(NBYTES, 1), np.uint8)
    with tempfile.TemporaryDirectory(dir=drive) as name, nothing_kept():
        path = Path(name) / "file"
        path.write_bytes(bytes(NBYTES) if write else data.tobytes())
        with (
            Schedule(submits=tuple(submits)).installed(),
            aio.aio_handle(backend=backend, block_size=BLOCK) as handle,
        ):
            _move(handle, write, path, data, {-answer for answer in submits if answer < 0})
            # All blocks are there: so many transfers are in flight when completions are held back.
            Schedule(holds=(10_000,) * 100).install()
            _move(handle, write, path, data, set())
            assert faults.report()["most_in_flight"] == BLOCKS


def _move(
    handle: aio.aio_handle,
    write: bool,
    path: Path,
    data: npt.NDArray[np.uint8],
    errnos: set[int],
) -> None:
    buffer = shifted(NBYTES, 1)
    if write:
        buffer.numpy()[:] = data
    (handle.async_pwrite if write else handle.async_pread)(buffer, path)
    completed, error = attempt(handle.wait, aio.AioError)
    if error is not None:
        assert error.errno in errnos - set(TRANSIENT)
        return
    assert completed == 1
    assert np.array_equal(np.fromfile(path, np.uint8), data)
    assert np.array_equal(buffer.numpy(), data)
