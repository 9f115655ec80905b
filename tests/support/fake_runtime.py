"""Modules as torch.cuda and its like, for accelerators: what they were called with, and answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class FakeEvent:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return


class FakeStream:
    def __init__(self, log: list[Any], name: str) -> None:
        self._log = log
        self._name = name

    def record_event(self) -> FakeEvent:
        self._log.append(f"event on {self._name}")
        return FakeEvent()


class FakeModule:
    """``codes`` answers the calls of the runtime by name; 0 where it has none."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.log: list[Any] = []
        self.up = True
        self.of_parent = False
        self.devices = 1

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.up

    def _is_in_bad_fork(self) -> bool:
        return self.of_parent

    def device_count(self) -> int:
        return self.devices

    @contextmanager
    def device(self, number: int) -> Iterator[None]:
        self.log.append(f"on device {number}")
        yield
        self.log.append("off it")

    def current_stream(self, device: Any = None) -> FakeStream:
        return FakeStream(self.log, "the current stream")

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def _call(self, name: str, *arguments: int) -> Any:
        self.up = True
        self.log.append((name, *arguments))
        return self.codes.get(name, 0)


class _Code:
    """An error of torch's CUDA bindings: an enumeration that turns into a number."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __int__(self) -> int:
        return self.value


class FakeCuda(FakeModule):
    def cudart(self) -> FakeCuda:
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> _Code:
        return _Code(self._call("cudaHostRegister", address, nbytes, flags))

    def cudaHostUnregister(self, address: int) -> _Code:
        return _Code(self._call("cudaHostUnregister", address))


class FakeNpu(FakeModule):
    def npurt(self) -> FakeNpu:
        return self

    def npuHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        code: int = self._call("npuHostRegister", address, nbytes, flags)
        return code

    def npuHostUnregister(self, address: int) -> int:
        code: int = self._call("npuHostUnregister", address)
        return code
