"""Environment variables that turn something on or off."""

from __future__ import annotations

_ON = ("1", "true", "yes", "on")
_OFF = ("0", "false", "no", "off")


def parse_switch(name: str, value: str) -> bool:
    """What a variable that is on by default says, in any case. Raises ValueError naming it."""
    word = value.strip().lower()
    if word in _OFF:
        return False
    if word in _ON or not word:
        return True
    raise ValueError(f"{name} is {value!r}; it must be one of {', '.join((*_ON, *_OFF))}")
