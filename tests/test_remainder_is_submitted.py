"""What a short transfer leaves is submitted, with nothing else queued (A-05, A-11, B-08)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aio
from support.child import READ_CALLS, WRITE_CALLS, child_answer, injections, with_strace
from support.mounts import ext4_image

TOTAL = 24 * 4096  # whole sectors, so that on a drive too it is one transfer
CALLS = f"{READ_CALLS},{WRITE_CALLS}"

# strace skips a call whose result it makes up.  So of the bytes that the kernel claims to have
# moved, none are there: after a write the file lacks them, after a read the tensor does, and only
# what follows tells whether the rest was moved.  strace counts by thread, and each handle here has
# one of its own: its first transfer is cut, with nothing else queued.
SCRIPT = """
import json, sys
import torch, aio
from support.buffers import pattern, raw, tensor_of
total, cut, names = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
data = pattern(total)
answers = []
for name in names:
    back = torch.zeros(total, dtype=torch.uint8)
    for way in ("write", "read"):
        found, done, error = None, None, None
        with aio.aio_handle(queue_depth=1, backend="posix") as handle:
            try:
                if way == "write":
                    handle.async_pwrite(tensor_of(data), name)
                else:
                    handle.async_pread(back, name)
                done = handle.wait()
            except aio.AioError as failure:
                error = failure.nbytes_done
            stats = handle.stats()
        if way == "write":
            found = open(name, "rb").read()
            with open(name, "wb") as file:
                file.write(data)
        else:
            found = raw(back)
        answers.append({
            "way": way, "done": done, "error": error,
            "size": len(found), "rest": found[cut:] == data[cut:],
            "short": stats["short_transfers"], "bytes": sum(stats["bytes"][way].values()),
        })
print(json.dumps(answers))
"""


def run(cut: int, when: str, directories: list[Path], log: Path) -> Any:
    if "posix" not in aio.available_backends():
        pytest.skip("the posix engine cannot run here; strace can cut no other engine's transfers")
    paths = [directory / "file" for directory in directories]
    fault = f"inject={CALLS}:retval={cut}{when}"
    wrapper = with_strace(log, f"trace={CALLS}", fault, path=paths)
    answers = child_answer(SCRIPT, TOTAL, cut, *paths, wrapper=wrapper)
    assert [answer["way"] for answer in answers] == ["write", "read"] * len(paths)
    return answers


def check(cut: int, directories: list[Path], log: Path) -> None:
    for answer in run(cut, ":when=1", directories, log):
        assert answer["done"] == 1, answer
        assert answer["size"] == TOTAL, answer
        assert answer["rest"], answer
        assert answer["short"] >= 1, answer
        assert answer["bytes"] == TOTAL, answer
    assert injections(log) == 2 * len(directories)


@pytest.mark.parametrize("cut", [1, 4096 + 512, 65535])
def test_the_only_transfer_is_cut(disk: Path, tmpfs: Path, tmp_path: Path, cut: int) -> None:
    check(cut, [disk, tmpfs], tmp_path / "log")


def test_a_sector_of_4096_bytes_is_cut(tmp_path: Path) -> None:
    """The rest may not go on from inside the sector past the page cache: that is EINVAL."""
    with ext4_image(tmp_path / "image", 64 << 20, sector_size=4096) as sectors:
        check(4096 + 512, [sectors], tmp_path / "log")


def test_a_transfer_of_nothing_ends(disk: Path, tmpfs: Path, tmp_path: Path) -> None:
    """Moving 0 bytes for ever is an error after a bounded number of tries, not a loop."""
    log = tmp_path / "log"
    for answer in run(0, "", [disk, tmpfs], log):
        assert answer["done"] is None, answer
        assert answer["error"] == 0, answer
    assert 4 <= injections(log) < 1000
