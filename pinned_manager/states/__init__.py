"""States of a training that move out of the way: to host memory or to a file, and back."""

from pinned_manager.states.kinds import OffloadStateTypeEnum
from pinned_manager.states.offload import offload_states, release, reload_states

__all__ = ["OffloadStateTypeEnum", "offload_states", "release", "reload_states"]
