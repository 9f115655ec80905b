"""Every dtype moves as the bytes it is: no conversion, NaN payloads included (B-13)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from support.buffers import pattern, raw, tensor_of
from support.files import contents

QUANTISED = ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")


def every_dtype() -> list[torch.dtype]:
    """One of each dtype of this torch that a tensor of bytes can be viewed as."""
    found = []
    for name in sorted(dir(torch)):
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype) or str(dtype) != f"torch.{name}":
            continue
        if name in QUANTISED:
            continue
        try:
            torch.zeros(48, dtype=torch.uint8).view(dtype)
        except (RuntimeError, TypeError, NotImplementedError):
            continue
        found.append(dtype)
    return found


def test_the_list_is_not_short() -> None:
    wanted = {torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}
    wanted |= {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    wanted |= {torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2}
    assert wanted <= set(every_dtype())


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_round_trip(directory: Path, handle: Any) -> None:
    for dtype in every_dtype():
        data = pattern(16 * 1001)
        if dtype is torch.bool:
            data = bytes(byte & 1 for byte in data)
        tensor = tensor_of(data, dtype)
        path = directory / str(dtype)
        assert handle.sync_pwrite(tensor, str(path)) == 1, dtype
        assert contents(path) == data, dtype
        back = torch.empty_like(tensor)
        assert handle.sync_pread(back, str(path)) == 1, dtype
        assert back.dtype == dtype
        assert back.view(torch.uint8).numpy().tobytes() == data, dtype


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (torch.float16, [0x7C01, 0x7E55, 0xFE00, 0xFFFF, 0x8000]),
        (torch.bfloat16, [0x7F81, 0x7FC5, 0xFFC0, 0xFFFF, 0x8000]),
        (torch.float32, [0x7F800001, 0x7FC12345, 0xFFC00000, 0xFFFFFFFF, 0x80000000]),
        (torch.float64, [0x7FF0000000000001, 0x7FF8DEADBEEF0000, 0xFFFFFFFFFFFFFFFF, 1 << 63]),
    ],
    ids=str,
)
def test_nan_payloads(
    directory: Path, backend: str, make_handle: Any, dtype: torch.dtype, bits: list[int]
) -> None:
    handle = make_handle(backend)
    data = b"".join(one.to_bytes(dtype.itemsize, "little") for one in bits)
    path = directory / "file"
    assert handle.sync_pwrite(tensor_of(data, dtype), str(path)) == 1
    assert contents(path) == data
    back = torch.zeros(len(bits), dtype=dtype)
    assert handle.sync_pread(back, str(path)) == 1
    assert raw(back) == data


@pytest.mark.parametrize(
    "lazy",
    [
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch._neg_view(torch.tensor([1.0, -2.0, 3.0])),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    ],
    ids=["conjugate", "negative", "imaginary part of a conjugate"],
)
def test_lazy_views_write_their_values(
    directory: Path, backend: str, make_handle: Any, lazy: torch.Tensor
) -> None:
    """A conjugate is a flag on memory that holds something else: write what it means, or refuse;
    never the memory.
    """
    handle = make_handle(backend)
    path = directory / "file"
    meant = lazy.resolve_conj().resolve_neg()
    try:
        handle.sync_pwrite(lazy, str(path))
    except (TypeError, ValueError):
        assert not path.exists()
    else:
        assert contents(path) == raw(meant)
    path.write_bytes(raw(meant))
    before = meant.clone()
    with contextlib.suppress(TypeError, ValueError):
        handle.sync_pread(lazy, str(path))
    assert torch.equal(lazy, before)


@pytest.mark.parametrize(
    "bad",
    [
        torch.empty(4, device="meta"),
        torch.eye(3).to_sparse(),
        [1, 2, 3],
        "text",
        None,
        3.5,
    ],
    ids=["meta", "sparse", "list", "str", "None", "float"],
)
def test_things_without_plain_memory_are_refused(
    directory: Path, backend: str, make_handle: Any, bad: Any
) -> None:
    handle = make_handle(backend)
    path = directory / "file"
    with pytest.raises(TypeError):
        handle.sync_pwrite(bad, str(path))
    assert not path.exists()
    path.write_bytes(bytes(100))
    with pytest.raises(TypeError):
        handle.sync_pread(bad, str(path))
    assert handle.wait() == 0
