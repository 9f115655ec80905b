"""What is no plain array: its bytes move, or it is refused before a file is made or a byte moves.

With torch's quick description of a tensor, and as with a torch that has none.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import _deepnvme
import aio
from pinned_manager import is_pinned, new_locked_tensor
from support.child import run_child
from tests.fuzz.buffers import Exporter, dlpack_tensor

ROOT = Path(__file__).resolve().parent.parent
DATES = np.arange(12).astype("M8[D]")
RECORDS = np.array([(1, "2020-01-02"), (3, "2021-03-04")], [("a", "i4"), ("b", "M8[s]")])
OBJECTS = np.array([(object(), "2020-01-02")], [("a", "O"), ("b", "M8[s]")])


@pytest.mark.parametrize(
    "array", [DATES, DATES[1::3], DATES.reshape(3, 4).T, RECORDS, RECORDS[::-1]]
)
def test_numpy_has_no_format_for_it(tmp_path: Path, array: Any) -> None:
    path = tmp_path / "file"
    with aio.aio_handle() as handle:
        assert handle.sync_pwrite(array, path) == 1
        assert path.read_bytes() == array.tobytes()
        back = np.zeros_like(array)
        assert handle.sync_pread(back, path) == 1
    assert np.array_equal(back, array)


def released() -> memoryview:
    view = memoryview(bytearray(4))
    view.release()
    return view


def quietly(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are prototypes, or will go
        return make()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "objects": (lambda: np.array([object()]), "Python objects"),
    "records with objects": (lambda: OBJECTS, "Python objects"),
    "released": (released, "memoryview cannot be viewed"),
    "nested": (lambda: quietly(lambda: torch.nested.nested_tensor([torch.ones(2)])), "unbind"),
    "quantized": (
        lambda: quietly(lambda: torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)),
        "int_repr",
    ),
    "sparse": (lambda: torch.eye(3).to_sparse(), "to_dense"),
    "not in host memory": (lambda: torch.ones(3, device="meta"), "device 'meta'"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("write", [True, False])
def test_refused(tmp_path: Path, kind: str, write: bool) -> None:
    make, match = REFUSED[kind]
    handle = _deepnvme.io.Handle(4096, 4, False, False, 1, "posix")  # aio looks at devices before
    with pytest.raises(TypeError, match=match):
        handle.synchronous(make(), str(tmp_path / "file"), 0, write, False)
    handle.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("view", [torch.conj, lambda z: torch.conj(z).imag])
def test_lazy_views(tmp_path: Path, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Written as what they are; not read into, where the bytes would be another value."""
    lazy = view(torch.arange(6).to(torch.complex64) * (1 + 2j))
    with aio.aio_handle() as handle:
        handle.sync_pwrite(lazy, tmp_path / "file")
        with pytest.raises(TypeError, match="is not its value"):
            handle.sync_pread(lazy, tmp_path / "file")
    expected = lazy.resolve_conj().resolve_neg().numpy()
    assert (tmp_path / "file").read_bytes() == expected.tobytes()


@pytest.mark.parametrize("step", [1, 2])
def test_tensors(tmp_path: Path, step: int) -> None:
    path = tmp_path / "file"
    tensor = torch.arange(40.0).reshape(4, 10).T[::step]
    with aio.aio_handle() as handle:
        handle.sync_pwrite(tensor, path)
        assert path.read_bytes() == tensor.contiguous().numpy().tobytes()
        back = torch.zeros(4, 10).T[::step]
        handle.sync_pread(back, path)
    assert torch.equal(back, tensor)


def test_inside_a_transform(tmp_path: Path) -> None:
    with aio.aio_handle() as handle:

        def write(row: torch.Tensor) -> torch.Tensor:
            with pytest.raises(TypeError, match="no memory of its own") as caught:
                handle.sync_pwrite(row, tmp_path / "file")
            assert isinstance(caught.value.__cause__, RuntimeError)
            return row

        torch.vmap(write)(torch.ones(3, 2))
    assert list(tmp_path.iterdir()) == []


def test_without_the_quick_description() -> None:
    """All that is here, in a process whose torch has none."""
    without = "import sys, torch; torch.Tensor.__dlpack_c_exchange_api__ = None\n"
    run = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", "-c", ROOT / "pyproject.toml"]
    done = run_child(without + run, *options, "-k", "not description", __file__)
    assert done.returncode == 0, done.stdout + done.stderr


class Lying(torch.Tensor):
    """``data_ptr()`` and ``nbytes`` are what a test says."""

    address: Any = 0
    size: Any = 4

    def data_ptr(self) -> Any:
        if isinstance(self.address, type):
            raise self.address
        return self.address

    @property
    def nbytes(self) -> Any:
        return self.size


@pytest.mark.parametrize(
    ("address", "size", "error"),
    [
        ("here", 4, TypeError),
        (1 << 70, 4, OverflowError),
        (None, -4, OverflowError),
        (None, 1.5, TypeError),
        (KeyError, 4, KeyError),
    ],
)
def test_tensors_that_lie(tmp_path: Path, address: Any, size: Any, error: type[Exception]) -> None:
    """Pinned memory is not held for a tensor that cannot be looked at."""
    pinned = new_locked_tensor(1, torch.float32, "test")
    lying = pinned.as_subclass(Lying)
    lying.address = pinned.data_ptr() if address is None else address
    lying.size = size
    with pytest.raises(error):
        _deepnvme.pin.hold(lying)
    assert is_pinned(pinned)
    if getattr(torch.Tensor, "__dlpack_c_exchange_api__", None) is None:  # that does not ask it
        with aio.aio_handle() as handle, pytest.raises(error):
            handle.sync_pwrite(lying, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def exporter(device: int = 1, version: int = 1) -> tuple[Exporter, Any]:
    memory = np.arange(7, dtype=np.uint8)
    shape = (ctypes.c_int64 * 1)(7)
    tensor: Any = dlpack_tensor(memory.ctypes.data, 8, shape, None)
    return Exporter(tensor, device, version, 0), memory


def test_exporters_from_before_versions(tmp_path: Path) -> None:
    inner, memory = exporter(version=0)

    class Old:
        def __dlpack_device__(self) -> tuple[int, int]:
            return inner.__dlpack_device__()

        def __dlpack__(self, stream: None = None) -> Any:
            return inner.__dlpack__()

    with aio.aio_handle() as handle:
        assert handle.sync_pwrite(Old(), tmp_path / "file") == 1
    assert (tmp_path / "file").read_bytes() == memory.tobytes()
    assert (inner.exported, inner.deleted) == (1, 1)


@pytest.mark.parametrize("error", [BufferError, KeyError])
def test_exporters_that_refuse(tmp_path: Path, error: type[Exception]) -> None:
    class Refusing(Exporter):
        def __dlpack__(self, max_version: Any = None) -> Any:
            self.exported += 1
            raise error("in use")

    refusing = Refusing(exporter()[0]._managed.tensor, 1, 1, 0)
    with aio.aio_handle() as handle, pytest.raises(error, match="in use"):
        handle.sync_pwrite(refusing, tmp_path / "file")
    assert refusing.exported == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", [0, 1])
def test_a_capsule_is_used_once(tmp_path: Path, version: int) -> None:
    inner, memory = exporter(version=version)

    class Same(Exporter):
        capsule: Any = None

        def __dlpack__(self, max_version: Any = None) -> Any:
            return self.capsule

    same = Same(inner._managed.tensor, 1, version, 0)
    with aio.aio_handle() as handle:
        with pytest.raises(TypeError, match="Same returned no capsule"):
            handle.sync_pwrite(same, tmp_path / "file")
        same.capsule = inner.__dlpack__()
        handle.sync_pwrite(same, tmp_path / "file")
        with pytest.raises(TypeError, match="is used already"):
            handle.sync_pwrite(same, tmp_path / "file", 7)
    assert inner.deleted == 1
    assert (tmp_path / "file").read_bytes() == memory.tobytes()


def test_exporters_on_a_device(tmp_path: Path) -> None:
    """Not pinned, and not asked to export what cannot be reached."""
    inner, _ = exporter(device=2)
    assert not is_pinned(inner)
    assert _deepnvme.pin.hold(inner) is None
    with aio.aio_handle() as handle, pytest.raises(TypeError, match="device type 2"):
        handle.sync_pwrite(inner, tmp_path / "file")
    assert inner.exported == 0


HALF_IMPORTED = """
import sys, types
sys.modules["torch"] = module = types.ModuleType("torch")
import _deepnvme
handle = _deepnvme.io.Handle(4096, 4, False, False, 1, "posix")
for name in ("Tensor", "strided"):  # in the order in which torch has them
    handle.synchronous(b"bytes", sys.argv[1], 0, True, False)
    back = bytearray(5)
    handle.synchronous(back, sys.argv[1], 0, False, False)
    assert back == b"bytes"
    setattr(module, name, type(name, (), {}))
"""


def test_while_another_thread_imports_torch(tmp_path: Path) -> None:
    done = run_child(HALF_IMPORTED, tmp_path / "file")
    assert (done.returncode, done.stderr) == (0, "")
