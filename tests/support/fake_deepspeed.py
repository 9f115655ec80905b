"""A package ``deepspeed`` of a few lines, with builders where DeepSpeed has them."""

from __future__ import annotations

from pathlib import Path

BUILDER = """
class OpBuilder:
    _loaded_ops = {}
    def __init__(self, name=None): self.name = self.NAME
    def load(self, verbose=True): return "compiled " + self.name
    def is_compatible(self, verbose=False): return False
class NotImplementedBuilder(OpBuilder):
    NAME = "deepspeed_not_implemented"
"""
ASYNC_IO = """
from .builder import *
class AsyncIOBuilder(OpBuilder):
    NAME = "async_io"
    def load(self, verbose=False): return "own " + super().load(verbose)
class GDSBuilder(AsyncIOBuilder):
    NAME = "gds"
    def is_compatible(self, verbose=False): return True
"""
PIN_MEMORY = """
from .builder import *
class PinMemoryBuilder(OpBuilder):
    NAME = "pin_memory"
"""
OTHER = """
from .builder import *
class UtilsBuilder(OpBuilder):
    NAME = "utils"
"""
# The names as the accelerator has them: all, or none, as on HPU, MLU, MPS and SDAA.
BUILDERS = """
from . import async_io, pin_memory, other, {accelerator}
from .builder import NotImplementedBuilder
AsyncIOBuilder = {asynchronous}
PinMemoryBuilder = {pins}
"""
ALL_OPS = """
from . import async_io, pin_memory
ALL_OPS = {"async_io": async_io.AsyncIOBuilder(), "pin_memory": pin_memory.PinMemoryBuilder()}
"""
# Up to 0.18 the probe is an import, later it is made when first asked for.
EAGER = """
from .op_builder.all_ops import ALL_OPS
__compatible_ops__ = {name: builder.is_compatible() for name, builder in ALL_OPS.items()}
"""
LAZY = """
def __getattr__(name):
    if name != "__compatible_ops__":
        raise AttributeError(name)
    from .op_builder.all_ops import ALL_OPS
    globals()[name] = {name: builder.is_compatible() for name, builder in ALL_OPS.items()}
    return globals()[name]
"""


def write_package(
    folder: Path, version: str = "0.19.8", *, implemented: bool = True, lazy: bool = True
) -> None:
    """Write it below ``folder``, which is to be put on the path."""
    names = ("async_io.AsyncIOBuilder", "pin_memory.PinMemoryBuilder")
    if not implemented:
        names = ("NotImplementedBuilder", "NotImplementedBuilder")
    files = {
        "__init__.py": "from . import ops, swapper\n",
        "git_version_info_installed.py": f"version='{version}'\n",
        "swapper.py": "from deepspeed.ops.op_builder import AsyncIOBuilder, PinMemoryBuilder\n",
        "utils/__init__.py": "",
        "utils/pin_memory.py": "_shared_native_pins = None\n",
        "ops/__init__.py": "from . import op_builder\n" + (LAZY if lazy else EAGER),
        "ops/op_builder/__init__.py": BUILDERS.format(
            accelerator="cpu", asynchronous=names[0], pins=names[1]
        ),
        "ops/op_builder/builder.py": BUILDER,
        "ops/op_builder/async_io.py": ASYNC_IO,
        "ops/op_builder/pin_memory.py": PIN_MEMORY,
        "ops/op_builder/other.py": OTHER,
        "ops/op_builder/all_ops.py": ALL_OPS,
        "ops/op_builder/cpu/__init__.py": "from .async_io import AsyncIOBuilder\n",
        "ops/op_builder/cpu/async_io.py": ASYNC_IO.replace("from .", "from .."),
        "ops/op_builder/npu/__init__.py": "from .async_io import AsyncIOBuilder\n",
        "ops/op_builder/npu/async_io.py": ASYNC_IO.replace("from .", "from .."),
    }
    for name, text in files.items():
        path = folder / "deepspeed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
