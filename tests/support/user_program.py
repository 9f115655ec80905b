"""A user's program with every public name in it: read by mypy --strict, never run.

Lines with ``type: ignore`` are mistakes that mypy has to find; --strict reports a comment of those
that hides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from typing_extensions import assert_type

import aio
import aio.deepspeed
import aio.swap
import pinned_manager as pm
from aio.profiles import Optimum, Profile, ProfileError, find_profile
from pinned_manager.device import Device, Event, register_device, unregister_device


def requests(tensor: torch.Tensor, path: Path) -> None:
    with aio.aio_handle(
        block_size=1 << 20,
        queue_depth=32,
        single_submit=False,
        overlap_events=True,
        intra_op_parallelism=2,
        backend="auto",
        profile={"queue_depth": 64},
        trace="trace.json",
    ) as handle:
        assert_type(handle, aio.aio_handle)
        assert_type(handle.sync_pwrite(tensor, path), int)
        assert_type(handle.sync_pread(bytearray(10), "file", file_offset=5), int)
        assert_type(handle.read(tensor, b"file", True), int)
        assert_type(handle.write(tensor, 5, validate=False), int)
        assert_type(handle.pread(tensor, path, True, False), int)
        assert_type(handle.pwrite(tensor, path, True, False, 4096), int)
        assert_type(handle.async_pread(tensor, path), int)
        assert_type(handle.async_pwrite(tensor, path, 4096), int)
        assert_type(handle.wait(), int)
        assert_type(handle.pread_many([(tensor, path), (tensor, path, 4096)]), int)
        assert_type(handle.pwrite_many((part, path) for part in tensor), int)
        handle.sync_pread(tensor, path, "5")  # type: ignore[arg-type]
        handle.sync_pread(tensor)  # type: ignore[call-arg]
        handle.fsync(path)
        handle.close()


def options(handle: aio.aio_handle) -> dict[str, int]:
    assert_type(handle.get_single_submit(), bool)
    assert_type(handle.get_overlap_events(), bool)
    assert_type(handle.backend, str)
    assert_type(handle.closed, bool)
    assert_type(handle.stats()["latency"]["p99"], float)
    assert_type(handle.stats()["devices"]["259:1"]["read"], int)
    handle.stats()["speed"]  # type: ignore[typeddict-item]
    return {
        "block_size": handle.get_block_size(),
        "queue_depth": handle.get_queue_depth(),
        "intra_op_parallelism": handle.get_intra_op_parallelism(),
        "alignment": handle.get_alignment(),
    }


async def futures(handle: aio.aio_handle, tensor: torch.Tensor, path: Path) -> int:
    future: aio.IOFuture = handle.submit_pread(tensor, path)
    assert_type(future.result(timeout=5.0), int)
    assert_type(future.exception(), BaseException | None)
    assert_type(future.done(), bool)
    future.add_done_callback(lambda done: print(done.result()))
    await handle.submit_pwrite(tensor, path)
    await handle.submit_pread_many([(tensor, path)])
    moved = await handle.submit_pwrite_many([(tensor, path, 0)])
    return assert_type(moved, int)


def failures(error: aio.AioError | aio.PinError) -> int:
    if isinstance(error, aio.PinError):
        assert_type(error.limit, int | None)
        return error.nbytes - error.locked
    assert_type(error.failures, tuple[aio.AioError, ...])
    return error.offset + error.nbytes - error.nbytes_done


def locked(handle: aio.aio_handle, pins: aio.pin_handle, example: torch.Tensor) -> None:
    tensor = assert_type(handle.new_cpu_locked_tensor(1000, example), torch.Tensor)
    assert_type(pins.new_cpu_locked_tensor(1000, example_tenosr=example), torch.Tensor)
    assert_type(handle.is_pinned(tensor) and pins.is_pinned(memoryview(b"")), bool)
    assert_type(handle.free_cpu_locked_tensor(tensor), bool)
    assert_type(pins.free_cpu_locked_tensor(tensor), bool)
    assert_type(pins.free_cpu_locked_tensor_by_ptr(tensor.data_ptr()), bool)
    assert_type(pm.new_locked_tensor(1000, torch.uint8, tag="mine"), torch.Tensor)
    assert_type(pm.free_locked_tensor(tensor), bool)


def process() -> Path:
    assert_type(aio.available_backends(), list[str])
    assert_type(aio.pinned_stats()["by_tag"], dict[str, int])
    assert_type(pm.pinned_stats()["in_use"], int)
    assert_type(aio.__version__, str)
    return aio.serve_stats()


def pinning(tensor: torch.Tensor) -> None:
    with pm.pinned_memory_tag("mine"):
        assert_type(pm.pin_memory(tensor, make_copy=False, match_shape=True), torch.Tensor)
    assert_type(pm.pin_empty(10, 10, dtype=torch.float32), torch.Tensor)
    assert_type(pm.pin_empty_like(tensor, dtype=torch.float16), torch.Tensor)
    assert_type(pm.is_pinned(tensor), bool)
    assert_type(pm.unpin_memory(tensor), bool | None)
    pm.pin_memory(tensor, copy=True)  # type: ignore[call-arg]

    native: pm.NativePinnedMemory = pm.get_native_pinned_memory()
    assert_type(native.pin(native.pin_empty(5)), torch.Tensor)
    assert_type(native.pin_fresh(tensor, True, True), torch.Tensor)
    assert_type(native.is_pinned(tensor) and native.unpin(tensor), bool)
    assert_type(pm.get_active_native_pinned_memory(), pm.NativePinnedMemory | None)


def accounts() -> int:
    stats: pm.PinnedMemoryStats = pm.pinned_memory_stats()
    assert_type(stats["by_backend"]["native"]["live"], int)
    pm.track_pinned_memory(4096)
    pm.pinned_memory_summary("now")
    pm.set_cache_limit(pm.get_cache_limit())
    pm.set_budget(pm.get_budget())
    pm.set_budget("16G")  # type: ignore[arg-type]
    pm.empty_cache()
    return stats["live"] + stats["cached"]


def streams(tensor: torch.Tensor, address: int) -> None:
    pm.copy_to_host(pm.copy_to_device(tensor, "cuda"), tensor, non_blocking=False)
    pm.record_stream(tensor, stream=None)
    assert_type(pm.collect_streams(), int)
    assert_type(pm.register_host_memory(address, 4096), bool)
    assert_type(pm.unregister_host_memory(address), bool)


def states(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    kinds = pm.OffloadStateTypeEnum
    pm.offload_states(optimizer, include=[kinds.optim_states, kinds.lp_grads], device="cpu")
    pm.offload_states(optimizer, [kinds.hp_params, "lp_params"], device="nvme", nvme_path=folder)
    pm.offload_states(optimizer, kinds.contiguous_grad_buffer, pin_memory=False)
    pm.reload_states(optimizer, non_blocking=True)
    pm.release(optimizer)


def profiles() -> Optimum | None:
    try:
        profile = assert_type(find_profile(["drive0", "drive1"]), Profile | None)
    except ProfileError:
        return None
    if profile is None or profile.read is None:
        return None
    aio.aio_handle(**profile.read.options.as_dict())
    assert_type(profile.read.bytes_per_second, float)
    return profile.write


def store(tensors: dict[str, torch.Tensor]) -> Any:
    with aio.swap.SwapStore(["drive0", Path("drive1")], name="mine", bandwidths=[2, 1]) as kept:
        writing: aio.swap.StoreFuture = kept.put("layer", tensors, in_place=True)
        writing.add_done_callback(lambda done: print(done.exception()))
        writing.result(timeout=5.0)
        kept.prefetch("layer")
        try:
            return kept.get("layer", out=tensors).result()
        except aio.swap.SwapFullError as error:
            assert_type(error.needed, int)
        except (aio.swap.ChecksumError, aio.swap.SwapError):
            kept.delete("layer")
        kept.flush().done()
        assert_type(kept.names(), list[str])
        assert_type(kept.nbytes("layer") + kept.stats()["stored"] + len(kept), int)
        assert_type(kept.closed or "layer" in kept, bool)
        kept.close()


def training(model: torch.nn.Module, swap_store: aio.swap.SwapStore) -> None:
    optimizer = aio.swap.SwappedOptimizer(
        model.named_parameters(), torch.optim.AdamW, swap_dir=swap_store, lr=1e-3
    )
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.empty(5))]})
    try:
        optimizer.step()
    except aio.swap.SwapStepError as error:
        assert_type(error.operation, str)
        optimizer.finish_step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.save("optimizer.pt", progress=True)
    optimizer.load(Path("optimizer.pt"))
    assert_type(optimizer.stats()["state_bytes"], int)
    optimizer.state[next(model.parameters())]["exp_avg"]
    if not optimizer.closed:
        optimizer.close()


def deepspeed() -> bool:
    try:
        aio.deepspeed.enable()
    except aio.deepspeed.UnsupportedDeepSpeed:
        print(aio.deepspeed.SUPPORTED_VERSIONS)
    aio.deepspeed.disable()
    return aio.deepspeed.enabled()


def accelerators(tensor: torch.Tensor) -> str:
    accelerator = pm.get_accelerator()
    assert_type(accelerator, pm.Accelerator)
    if accelerator.registers_host_memory and accelerator.can_register():
        accelerator.unregister_host_memory(5 * accelerator.register_host_memory(4096, 4096))
    accelerator.record_event().synchronize()
    accelerator.synchronize()
    assert_type(accelerator.pin_memory(tensor, make_copy=True), torch.Tensor)
    assert_type(accelerator.pin_empty_like(accelerator.pin_empty(5)), torch.Tensor)
    assert_type(accelerator.unpin_memory(tensor), bool | None)
    assert_type(accelerator.is_pinned(tensor), bool)
    assert_type(accelerator.pin_memory_alignment(), int)
    pm.set_accelerator(None)
    return accelerator.name


class Done:
    """An `Event` of a device that does everything at once."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class HostDevice(Device):
    """A device of the user's own."""

    def current_stream(self) -> int:
        return 0

    def record_event(self) -> Event:
        return Done()

    @contextmanager
    def side_stream(self, after: Event) -> Iterator[None]:
        yield

    def copy_to_host(self, host: torch.Tensor, source: Any) -> Event:
        return self.copy(host, source)

    def copy_to_device(self, destination: Any, host: torch.Tensor) -> Event:
        return self.copy(destination, host)

    def empty_like(self, host: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(host)

    def copy(self, destination: Any, source: Any) -> Event:
        destination.copy_(source)
        return Done()

    def keep_for_stream(self, tensor: Any) -> None:
        return None

    def octets(self, tensor: Any) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def contiguous(self, tensor: Any) -> Any:
        return tensor

    def contiguous_target(self, tensor: Any) -> Any:
        return tensor

    def finish_target(self, target: Any, tensor: Any) -> None:
        return None


def devices(device: Device, tensor: torch.Tensor) -> None:
    register_device("mine", HostDevice())
    octets = device.octets(device.contiguous(tensor))
    assert_type(octets[: len(octets) // 2], Any)
    device.finish_target(device.contiguous_target(tensor), tensor)
    unregister_device("mine")
