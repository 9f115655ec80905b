"""The native core of deepnvme. Private: use the packages aio and pinned_manager."""

from . import io as io
from . import pin as pin
