"""Which DeepSpeed there is, found out without importing it, and whether it is a known one."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

SUPPORTED_VERSIONS = ("0.16", "0.17", "0.18", "0.19")  # whose builders and call sites were read


class UnsupportedDeepSpeed(RuntimeError):
    """This version of DeepSpeed is not known, so none of it is replaced."""


def installed_version() -> str:
    """The version of the DeepSpeed that ``import deepspeed`` would find, or has found.

    Raises ModuleNotFoundError where there is none.
    """
    spec = importlib.util.find_spec("deepspeed")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise ModuleNotFoundError(
            "DeepSpeed is not installed in this environment: pip install deepspeed",
            name="deepspeed",
        )
    package = Path(folders[0])
    # The first is what DeepSpeed's own set-up writes, the second what a checkout has.
    for file in (package / "git_version_info_installed.py", package.parent / "version.txt"):
        if file.is_file():
            found = re.search(
                r"""^(?:version\s*=\s*['"])?(\d+\.\d+[^'"\s]*)""", file.read_text(), re.M
            )
            if found:
                return found[1]
    raise UnsupportedDeepSpeed(
        f"the DeepSpeed at {package} does not say which version it is: install it (pip install), "
        "or put its version.txt beside the package"
    )


def require_supported(version: str) -> None:
    """Raise UnsupportedDeepSpeed for a version whose minor release is not known."""
    if ".".join(version.split(".")[:2]) not in SUPPORTED_VERSIONS:
        raise UnsupportedDeepSpeed(
            f"DeepSpeed {version} is not known to aio.deepspeed: it supports "
            f"{SUPPORTED_VERSIONS[0]} to {SUPPORTED_VERSIONS[-1]} (any patch release). Install one "
            "of them, or leave DeepSpeed its own operators"
        )
