"""The handle that the library makes for directories of its user's."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from aio.handle import aio_handle
from aio.profiles import automatic_profile

_logger = logging.getLogger("aio")


def handle_for(directories: Sequence[str | os.PathLike[str]]) -> aio_handle:
    """A handle with the profile of the directories; a bad profile costs speed, not the program.

    Raises ValueError for a DEEPNVME_BACKEND or DEEPNVME_PROFILES that says nothing.
    """
    profile = automatic_profile(directories)
    try:
        return aio_handle(profile=profile)
    except ValueError as error:
        if profile is None:
            raise
        _logger.warning("defaults are used instead of a profile: %s", error)
        return aio_handle()
