"""The options of a handle: their defaults, and those that come from outside of the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class HandleOptions:
    """What ``aio_handle`` is made with; sizes in bytes."""

    block_size: int = 1048576
    queue_depth: int = 128
    single_submit: bool = False
    overlap_events: bool = True
    intra_op_parallelism: int = 1
    backend: str = "auto"

    def as_dict(self) -> dict[str, Any]:
        """By name, as ``aio_handle`` takes them."""
        return asdict(self)


OPTION_TYPES = {field.name: type(field.default) for field in fields(HandleOptions)}
_WANTED = {int: "a whole number", bool: "true or false", str: "a name"}


def check_options(values: Any, source: str) -> dict[str, Any]:
    """Some options by name, once their names and types are right. Ranges are the handle's to check.

    Raises ValueError that names ``source``, the option and what it takes.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{source} has {values!r} where options by name must be")
    for name, value in values.items():
        wanted = OPTION_TYPES.get(name)
        if wanted is None:
            allowed = ", ".join(OPTION_TYPES)
            raise ValueError(f"{source} has {name!r}, but options are {allowed}")
        if type(value) is not wanted:  # True is an int, and no number of bytes
            raise ValueError(f"{source} has {name} {value!r}, but it must be {_WANTED[wanted]}")
    return dict(values)
