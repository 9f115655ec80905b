"""On PYTHONPATH by ``python -m aio.deepspeed``: enables when DeepSpeed is first imported.

Python imports a sitecustomize when it starts, and so do the processes that a program starts. This
one imports neither torch nor aio before something imports deepspeed. The sitecustomize that it
stands before, if any, is run as well.
"""

from __future__ import annotations

import importlib
import os
import sys


class EnableFirst:
    """A finder that finds nothing, but enables before deepspeed is looked for."""

    busy = False  # enable() looks for deepspeed, too

    @classmethod
    def find_spec(cls, fullname: str, path: object = None, target: object = None) -> None:
        """None, always."""
        if fullname == "deepspeed" and not cls.busy:
            cls.busy = True
            try:
                cls.enable()
            finally:
                cls.busy = False
            sys.meta_path.remove(cls)  # not if that failed: the next import fails the same way

    @staticmethod
    def enable() -> None:
        """Call aio.deepspeed.enable() of the package that this file belongs to."""
        # It may be a source tree, not on the path of the program, beside another one installed.
        root = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
        sys.path.insert(0, root)
        try:
            import aio.deepspeed
        finally:
            sys.path.remove(root)
        aio.deepspeed.enable()


def run_the_other() -> None:
    """Import the sitecustomize that would be found without this directory."""
    own = sys.modules.pop("sitecustomize")
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != HERE]
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", own)


HERE = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("DEEPNVME_DEEPSPEED") == "1":
    sys.meta_path.insert(0, EnableFirst)
run_the_other()
