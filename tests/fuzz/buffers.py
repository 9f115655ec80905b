"""Strided memory as the buffer protocol and DLPack describe it, drawn; numpy says what is in it."""

from __future__ import annotations

import ctypes
import math
import os
from typing import Any

import numpy as np

from .draws import Draws

ROOM = 1 << 12
OLD = np.frombuffer(bytes(range(1, 252)) * 17, np.uint8)[:ROOM]


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def dlpack_tensor(address: int, bits: int, shape: Any, strides: Any) -> _Tensor:
    """A tensor in host memory; arrays of c_int64, or None for no strides."""
    return _Tensor(address, _Device(1, 0), len(shape), _DataType(1, bits, 1), shape, strides, 0)


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_OLD_NAME, _NEW_NAME = b"dltensor", b"dltensor_versioned"  # a capsule keeps the address


class Exporter:
    """`__dlpack__` of what was drawn. Counts its deleter's calls."""

    def __init__(self, tensor: _Tensor, device: int, version: int, flags: int) -> None:
        self.deleted = self.exported = 0
        self._device = device
        self._deleter = _DELETER(self._delete)
        if version == 0:
            self._managed: Any = _Managed(tensor, None, self._deleter)
        else:
            self._managed = _Versioned((version, 0), None, self._deleter, flags, tensor)
        self._name = _NEW_NAME if version else _OLD_NAME

    def _delete(self, _: int) -> None:
        self.deleted += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, max_version: Any = None) -> Any:
        self.exported += 1
        return _new_capsule(ctypes.addressof(self._managed), self._name, None)


def _layout(draws: Draws) -> tuple[list[int], list[int], int]:
    """Shape in elements, strides in elements, and a first element, in bytes."""
    shape = [draws.below(12) for _ in range(draws.below(5))]
    strides = [draws.below(64) - 20 for _ in shape]
    if not draws.below(2):  # row-major, with or without gaps
        step = 1 + draws.below(2)
        for axis in reversed(range(len(shape))):
            strides[axis] = step
            step *= max(shape[axis], 1)
    return shape, strides, draws.below(ROOM)


def _places(shape: list[int], strides: list[int], first: int, itemsize: int) -> Any:
    """The place of every byte of every element, in their order, or None where one has none."""
    places = np.full((), first, np.int64)
    for length, stride in zip(shape, strides, strict=True):
        places = places[..., None] + np.arange(length) * (stride * itemsize)
    places = (places[..., None] + np.arange(itemsize)).reshape(-1)
    inside = places.size == 0 or (places.min() >= 0 and places.max() < ROOM)
    return places if inside else None


def _transfer(given: Any, memory: Any, places: Any, write: bool, handle: Any) -> None:
    """A request on `given`, against what numpy makes of its memory."""
    new = (~np.resize(OLD, places.size)).tobytes()
    fd = os.memfd_create("fuzz")
    try:
        os.pwrite(fd, b"" if write else new, 0)
        handle.synchronous(given, fd, 0, write, False)
        expected = OLD.copy()
        if write:
            assert os.pread(fd, places.size + 1, 0) == OLD[places].tobytes()
        else:
            assert np.unique(places).size == places.size, "it read where elements overlap"
            expected[places] = np.frombuffer(new, np.uint8)
        assert np.array_equal(memory, expected), "bytes beside the elements have changed"
    finally:
        os.close(fd)


def buffer(draws: Draws, handle: Any) -> None:
    """The buffer protocol, through numpy."""
    itemsize = draws.of((1, 2, 3, 4, 8, 16))
    shape, strides, first = _layout(draws)
    places = _places(shape, strides, first, itemsize)
    write, read_only = bool(draws.below(2)), not draws.below(4)
    if places is None or math.prod(shape) * itemsize > ROOM:
        return
    memory = OLD.copy()
    steps = tuple(stride * itemsize for stride in strides)
    array = np.ndarray(tuple(shape), f"V{itemsize}", memory.data, first, steps)
    if places.size == 0:
        array = np.zeros(tuple(shape), f"V{itemsize}")
    array.flags.writeable = not read_only
    _transfer(memoryview(array) if draws.below(2) else array, memory, places, write, handle)
    assert write or not read_only, "it read into memory that is read-only"


def dlpack(draws: Draws, handle: Any) -> None:
    """What an exporter may say by the DLPack specification, and some things that it may not."""
    bits, lanes = draws.of((8, 16, 32, 64, 128, 1, 4, 6, 12)), draws.of((1, 1, 2, 3))
    itemsize = bits * lanes // 8
    shape, strides, first = _layout(draws)
    dense = bool(draws.below(2))  # strides left out
    if dense:
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    places = _places(shape, strides, first, itemsize)
    device = draws.of((1, 1, 1, 3, 11, 2, 14, -1))
    version, flags = draws.of((1, 0, 2)), draws.of((0, 0, 1, 2))
    write = bool(draws.below(2))
    if places is None or math.prod(shape) * itemsize > ROOM:
        return
    memory = OLD.copy()
    offset = draws.below(first + 1)  # the rest of `first` is in the address
    shape_array = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    strides_array = (ctypes.c_int64 * max(len(shape), 1))(*strides)
    tensor = _Tensor(
        memory.ctypes.data + first - offset,
        _Device(device, 0),
        len(shape),
        _DataType(1, bits, lanes),
        shape_array,
        None if dense else strides_array,
        offset,
    )
    exporter = Exporter(tensor, device, version, flags)
    try:
        _transfer(exporter, memory, places, write, handle)
        assert bits * lanes % 8 == 0
        assert device in (1, 3, 11)
        assert version < 2
        assert write or version == 0 or flags == 0, "it read into a copy, or read-only memory"
    finally:
        handle.wait()  # drops what requests held
        assert exporter.deleted == exporter.exported, "the deleter was not called once"
