"""A region as the consumer of a DLPack capsule has it, to be let go on a thread without the GIL."""

from __future__ import annotations

import ctypes
from typing import Any

DELETER = 56  # offset in DLManagedTensor

_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_USED = b"used_dltensor"


class Consumed:
    """The tensor of a capsule, taken out of it."""

    def __init__(self, capsule: Any) -> None:
        self._managed: int = _api.PyCapsule_GetPointer(capsule, b"dltensor")
        _api.PyCapsule_SetName(capsule, _USED)
        self.address = ctypes.c_void_p.from_address(self._managed).value or 0
        deleter = ctypes.c_void_p.from_address(self._managed + DELETER).value
        assert deleter is not None
        self._delete_without_gil = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)
        self._delete_with_gil = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(deleter)

    def let_go(self, with_gil: bool) -> None:
        """Call its deleter: ctypes gives the GIL up around it, or not."""
        delete = self._delete_with_gil if with_gil else self._delete_without_gil
        delete(self._managed)
