"""Children that are killed at a certain system call: every moment at which files can differ."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct

_TRACEME, _SYSCALL, _SETOPTIONS, _SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_TRACESYSGOOD, _EXITKILL = 1, 1 << 20
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_INFO_BYTES = 88
_ENTRY = 1

# What touches files, by the kernel's numbers: open, flock, lseek, write, fsync, close, rename,
# unlink. Others, such as waiting for threads, differ from run to run.
_FILE_CALLS = {
    "x86_64": {257, 73, 8, 1, 74, 3, 82, 87},
    "aarch64": {56, 32, 62, 64, 82, 57, 38, 276, 35},
}.get(platform.machine(), set())

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int, address: int | None, data: object) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace({request:#x}): {os.strerror(number)}")


def trace_me() -> None:
    """In a child: stop until the parent calls run_until()."""
    _ptrace(_TRACEME, 0, None, None)
    signal.raise_signal(signal.SIGSTOP)


def run_until(pid: int, moment: int | None) -> int:
    """Let a child that stopped in trace_me() go on, and kill it at its n-th moment: each call that
    touches files is two, before it and after it. Only those of its main thread count.

    Returns how many there were, when it has ended. ``None``: it is not killed. Raises
    RuntimeError when it has ended otherwise.
    """
    if not _FILE_CALLS:
        raise OSError(0, f"the system calls of {platform.machine()} are not known to this test")
    _, status = os.waitpid(pid, 0)
    if not os.WIFSTOPPED(status):
        raise RuntimeError(f"the child ended early: {os.waitstatus_to_exitcode(status)}")
    _ptrace(_SETOPTIONS, pid, None, _TRACESYSGOOD | _EXITKILL)
    seen, touches, passed_on = 0, False, 0
    info = ctypes.create_string_buffer(_INFO_BYTES)
    while True:
        _ptrace(_SYSCALL, pid, None, passed_on)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            how = os.waitstatus_to_exitcode(status)
            if how:
                raise RuntimeError(f"the child ended with {how}")
            return seen
        passed_on = 0
        if os.WSTOPSIG(status) != _SYSCALL_STOP:
            passed_on = os.WSTOPSIG(status)
            continue
        _ptrace(_SYSCALL_INFO, pid, _INFO_BYTES, ctypes.addressof(info))
        operation, number = struct.unpack_from("=B23xQ", info)
        if operation == _ENTRY:
            touches = number in _FILE_CALLS
        if not touches:
            continue
        seen += 1
        if seen == moment:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return seen
