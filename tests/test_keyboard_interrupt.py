"""Ctrl-C during a blocking call raises; the I/O goes on and can be waited for (C-06)."""

from __future__ import annotations

from pathlib import Path

from support.buffers import pattern
from support.child import child_answer, with_strace

TRANSFERS = 20
BLOCK = 4096

SCRIPT = """
import gc, json, os, signal, sys, threading
import torch, aio
backend, path, nbytes, block = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sys.setswitchinterval(1000)
handle = aio.aio_handle(backend=backend, block_size=block, queue_depth=1)
expected = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.uint8)
fresh = lambda: torch.zeros(nbytes, dtype=torch.uint8)

def interrupted(call):
    ready = threading.Event()
    def interrupt():
        ready.wait()
        while handle.stats()["in_flight"] == 0:
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        ready.set()
        call()
    except KeyboardInterrupt:
        how = "interrupted"
    else:
        how = "returned"
    flying = handle.stats()["in_flight"] > 0
    thread.join()
    return [how, flying]

answer = {}
buffer = fresh()
handle.async_pread(buffer, path)
answer["wait"] = interrupted(handle.wait)
answer["counted"] = handle.wait()
answer["after wait"] = torch.equal(buffer, expected)

buffer = fresh()
future = handle.submit_pread(buffer, path)
answer["result"] = interrupted(future.result)
answer["moved"] = future.result()
answer["after result"] = torch.equal(buffer, expected)

# Nobody keeps the buffers of these two: the library must, until the last transfer.
answer["sync_pread"] = interrupted(lambda: handle.sync_pread(fresh(), path))
answer["pread_many"] = interrupted(lambda: handle.pread_many([(fresh(), path)]))
gc.collect()
churn = [torch.full((nbytes,), 7, dtype=torch.uint8) for _ in range(20)]
handle.wait()
handle.close()
answer["untouched"] = all(bool((tensor == 7).all()) for tensor in churn)
print(json.dumps(answer))
"""


def test_every_blocking_call(disk: Path, backend: str, tmp_path: Path) -> None:
    path = disk / "file"
    path.write_bytes(pattern(TRANSFERS * BLOCK))
    # 50 ms for each transfer: 1 s of I/O that an interrupted call does not wait for.
    slow = "io_getevents,io_pgetevents,io_uring_enter,pread64,preadv,preadv2"
    answer = child_answer(
        SCRIPT,
        backend,
        path,
        TRANSFERS * BLOCK,
        BLOCK,
        wrapper=with_strace(tmp_path / "trace", f"trace={slow}", f"inject={slow}:delay_exit=50000"),
    )
    interrupted = ["interrupted", True]
    assert answer == {
        "wait": interrupted,
        "counted": 1,
        "after wait": True,
        "result": interrupted,
        "moved": TRANSFERS * BLOCK,
        "after result": True,
        "sync_pread": interrupted,
        "pread_many": interrupted,
        "untouched": True,
    }
