"""Memory whose registration with a device cannot be taken back stays locked, whatever is why."""

from __future__ import annotations

from typing import Any

import pytest

from support.child import child_answer

COMMON = """
import atexit, json, sys, threading
from _deepnvme import pin
from support.counters import status_kb

NBYTES = 1 << 20

class Registrar:
    def __init__(self):
        self.asked = []
    def wanted(self):
        return True
    def register(self, address, nbytes):
        return True
    def unregister(self, address):
        self.asked.append(address)
        return self.answer()

registrar = Registrar()
pin.set_registrar(registrar)
pin.set_cache_limit(0)
before = status_kb("VmLck")
locked = lambda: (status_kb("VmLck") - before) << 10
"""

RAISES = """
said = []
sys.unraisablehook = lambda one: said.append([one.exc_type.__name__, str(one.exc_value)])
error = {"KeyError": KeyError, "KeyboardInterrupt": KeyboardInterrupt}[sys.argv[1]]
def answer():
    raise error("why")
registrar.answer = answer
capsule = pin.allocate_dlpack(NBYTES, "test")
heard = False
try:
    del capsule
    for _ in range(10_000):
        pass
except KeyboardInterrupt:
    heard = True
kept = locked()
registrar.answer = lambda: True
capsule = pin.allocate_dlpack(NBYTES, "test")
del capsule
stats = pin.stats()
print(json.dumps([said, heard, kept, locked(), len(registrar.asked), stats["in_use"]]))
"""


@pytest.mark.parametrize("error", ["KeyError", "KeyboardInterrupt"])
def test_it_raises(error: str) -> None:
    """It is said, Ctrl-C is heard all the same, and the device may reach the memory for ever."""
    (said,), heard, kept, now, asked, in_use = answer(RAISES, error)
    assert said == [error, "'why'" if error == "KeyError" else "why"]
    assert heard is (error == "KeyboardInterrupt")
    assert (kept, now) == (1 << 20, 1 << 20)  # the next is given back
    assert (asked, in_use) == (2, 0)


AT_EXIT = """
entered, go_on = threading.Event(), threading.Event()
def answer():
    entered.set()
    return go_on.wait(60)
registrar.answer = answer
first = [pin.allocate_dlpack(NBYTES, "test")]
second = [pin.allocate_dlpack(NBYTES, "test")]
thread = threading.Thread(target=first.clear)
thread.start()
entered.wait()
atexit._run_exitfuncs()
second.clear()  # behind the first, in the hands of the thread
go_on.set()
thread.join()
print(json.dumps([len(registrar.asked), locked()]))
"""


def test_python_is_not_called_after_the_exit_functions() -> None:
    """A thread that is taking registrations back meanwhile leaves the others as they are."""
    assert answer(AT_EXIT) == [1, 1 << 20]


def answer(script: str, *arguments: str) -> Any:
    return child_answer(COMMON + script, *arguments)
