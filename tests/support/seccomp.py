"""System calls forbidden to this process for good (FX5): call it in a child only."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable

# Numbers that all architectures share.
IO_URING = (425, 426, 427)  # setup, enter, register
IO_URING_REGISTER = (427,)
# Numbers of the architectures that these tests know.
IO_SETUP = {"x86_64": 206, "aarch64": 0}.get(platform.machine())

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_LOAD_NUMBER = (0x20, 0, 0, 0)  # BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)
_RETURN = 0x06
_JUMP_IF_EQUAL = 0x15
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def forbid(numbers: Iterable[int], error: int = errno.EPERM) -> None:
    """Make the system calls `numbers` fail with `error` from here on."""
    instructions = [_LOAD_NUMBER]
    for number in numbers:
        instructions.append((_JUMP_IF_EQUAL, 0, 1, number))
        instructions.append((_RETURN, 0, 0, _ERRNO | error))
    instructions.append((_RETURN, 0, 0, _ALLOW))
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(instructions), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")
