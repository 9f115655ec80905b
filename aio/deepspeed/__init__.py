"""DeepSpeed on this engine: what used its operators async_io and pin_memory uses this library.

``enable()`` in a program, or ``python -m aio.deepspeed script.py`` for one that stays as it is.
"""

from aio.deepspeed.patches import disable, enable, enabled
from aio.deepspeed.versions import SUPPORTED_VERSIONS, UnsupportedDeepSpeed

__all__ = [
    "SUPPORTED_VERSIONS",
    "UnsupportedDeepSpeed",
    "disable",
    "enable",
    "enabled",
]
