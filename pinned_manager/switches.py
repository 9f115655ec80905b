"""Environment variables that turn something on or off."""

from __future__ import annotations

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")


def parse_switch(name: str, value: str, default: bool = True) -> bool:
    """What a variable says, in any case; ``default`` if it is empty. ValueError names it."""
    word = value.strip().lower()
    if not word:
        return default
    if word in (*_ON, *_OFF):
        return word in _ON
    raise ValueError(f"{name} is {value!r}; it must be one of {', '.join((*_ON, *_OFF))}")
