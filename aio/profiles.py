"""Profiles: the options that ds_nvme_tune has found for a directory, saved and found again.

1. A profile is a JSON file. Its name is a digest of what identifies the file systems (and drives)
   that were tuned, so every directory on them finds it, and no other one does.
2. It has that identity inside, too: a file that was copied or renamed is refused.
3. It is replaced at once (os.replace), so that a reader sees the old one or the new one.
4. Several directories that were tuned together have one profile together, and none alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aio.drives import identity
from aio.options import HandleOptions, check_options
from pinned_manager.switches import parse_switch

FORMAT = "deepnvme profile"
VERSION = 1

_logger = logging.getLogger("aio")

__all__ = ["Optimum", "Profile", "ProfileError", "find_profile"]

Directory = str | os.PathLike[str]


class ProfileError(ValueError):
    """A profile that is damaged, of another program or version, or of another drive."""


@dataclass(frozen=True)
class Optimum:
    """The best options for one direction, and what they reached."""

    options: HandleOptions
    bytes_per_second: float


@dataclass(frozen=True)
class Profile:
    """What one run of ds_nvme_tune has found.

    Attributes:
        options: for a handle that reads and writes; what ``aio_handle(profile=...)`` takes.
        read, write: the best for one direction alone; None for one that was not measured.
        directories: where it was measured.
        drives: what identifies their file systems, each once.
        created: date and time, ISO 8601.
        machine: what it was measured on.
    """

    options: HandleOptions
    read: Optimum | None
    write: Optimum | None
    directories: tuple[str, ...]
    drives: tuple[dict[str, str], ...]
    created: str
    machine: dict[str, Any] = field(default_factory=dict)


def profile_folder() -> Path:
    """Where profiles are saved: ``$XDG_CONFIG_HOME/deepnvme/profiles``, else below ``~/.config``.

    Raises ProfileError where there is no home directory either.
    """
    given = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(given):  # others are to be ignored, says the XDG specification
        return Path(given) / "deepnvme" / "profiles"
    try:
        return Path.home() / ".config" / "deepnvme" / "profiles"
    except RuntimeError as error:
        message = f"no place for profiles ({error}): set XDG_CONFIG_HOME to a directory"
        raise ProfileError(message) from error


def drives_of(directories: Sequence[Directory]) -> tuple[dict[str, str], ...]:
    """What identifies the file systems of directories, each once, in a fixed order."""
    found = {json.dumps(identity(place), sort_keys=True) for place in directories}
    return tuple(json.loads(text) for text in sorted(found))


def profile_path(directories: Sequence[Directory]) -> Path:
    """The file that the profile of these directories has, whether or not it is there.

    Raises OSError for a directory that is not there.
    """
    text = json.dumps(drives_of(directories), sort_keys=True)
    return profile_folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def save_profile(profile: Profile, path: Path) -> None:
    """Write or replace a profile, in one step. Raises OSError; the old one is whole then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"format": FORMAT, "version": VERSION, **asdict(profile)}
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)  # Ctrl-C may come right after it was renamed
        raise


def load_profile(path: Directory) -> Profile:
    """The profile in a file. Raises OSError, or ProfileError with what is wrong in it."""
    try:
        document = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        raise ProfileError(f"{os.fspath(path)} is no profile: {error}") from error
    return _profile_of(document, os.fspath(path))


def find_profile(directories: Directory | Sequence[Directory]) -> Profile | None:
    """The profile of one directory, or of several together; None where none was saved.

    Raises OSError for a directory or a profile that cannot be read, ProfileError for a profile that
    cannot be used.
    """
    if isinstance(directories, (str, os.PathLike)):
        directories = [directories]
    path = profile_path(directories)
    try:
        profile = load_profile(path)
    except FileNotFoundError:
        return None
    if profile.drives != drives_of(directories):
        raise ProfileError(
            f"{path} is the profile of other drives ({', '.join(profile.directories)}): "
            "delete it, or run ds_nvme_tune here"
        )
    return profile


def automatic_profile(directories: Sequence[Directory]) -> Profile | None:
    """The profile for a handle that nobody has given options; what is wrong with it is logged.

    None where there is none that can be used, and where DEEPNVME_PROFILES turns them off; any other
    value of that variable than a switch is a ValueError.
    """
    if not parse_switch("DEEPNVME_PROFILES", os.environ.get("DEEPNVME_PROFILES", "")):
        return None
    try:
        return find_profile(directories)
    except (OSError, ProfileError) as error:
        _logger.warning("defaults are used instead of a profile: %s", error)
        return None


def profile_options(profile: Profile | Mapping[str, Any] | Directory) -> dict[str, Any]:
    """Options by name, of a profile, a mapping of options, a profile's file, or a directory.

    Raises FileNotFoundError for a directory that was not tuned, ProfileError and OSError as
    load_profile does, ValueError for options that there are not.
    """
    if isinstance(profile, Profile):
        return profile.options.as_dict()
    if isinstance(profile, Mapping):
        if "format" in profile:
            return _profile_of(dict(profile), "profile").options.as_dict()
        return check_options(profile, "profile")
    if not isinstance(profile, (str, os.PathLike)):
        raise TypeError(
            f"profile must be a path, a dict of options or a Profile, not {type(profile).__name__}"
        )
    if not os.path.isdir(profile):
        return load_profile(profile).options.as_dict()
    found = find_profile(profile)
    if found is None:
        place = os.fspath(profile)
        raise FileNotFoundError(
            f"{place} has no profile: make one with ds_nvme_tune --nvme_dir {place}, or pass "
            f"find_profile({place!r}), which is None then"
        )
    return found.options.as_dict()


def _profile_of(document: Any, source: str) -> Profile:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ProfileError(f"{source} is no profile of ds_nvme_tune")
    if document.get("version") != VERSION:
        raise ProfileError(
            f"{source} is a profile of version {document.get('version')!r}, but this release reads "
            f"version {VERSION}: run ds_nvme_tune again"
        )
    try:
        return Profile(
            options=_options_of(document["options"], source),
            read=_optimum_of(document["read"], source),
            write=_optimum_of(document["write"], source),
            directories=tuple(map(str, document["directories"])),
            drives=tuple(map(dict, document["drives"])),
            created=str(document["created"]),
            machine=dict(document["machine"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProfileError(
            f"{source} is a damaged profile ({error!r}): run ds_nvme_tune again"
        ) from error


def _options_of(values: Any, source: str) -> HandleOptions:
    return HandleOptions(**check_options(values, source))


def _optimum_of(values: Any, source: str) -> Optimum | None:
    if values is None:
        return None
    return Optimum(_options_of(values["options"], source), float(values["bytes_per_second"]))
