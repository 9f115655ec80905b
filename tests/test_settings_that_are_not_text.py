"""A variable whose value is no UTF-8 is refused as any wrong value is, by its name (make fuzz)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

READ = """
import _deepnvme
try:
    getattr(_deepnvme.pin, {reader!r})()
except ValueError as error:
    print(ascii(str(error)))
"""


@pytest.mark.parametrize(
    ("variable", "reader"),
    [("DEEPNVME_PIN_CACHE_BYTES", "get_cache_limit"), ("DEEPNVME_PIN_BUDGET", "get_budget")],
)
def test_the_error_names_it(variable: str, reader: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ.format(reader=reader)],
        env={**os.environb, variable.encode(): b"1\xff"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith(f"\"{variable} is '1\\\\udcff'; give a number of bytes")
