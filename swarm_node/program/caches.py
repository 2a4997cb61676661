"""Where libraries keep their caches if the user's own directory cannot have them.

A container with a user id of its own has no entry in passwd, often no HOME, or one that is `/` or
read-only. Libraries then end with an error, or make a directory that is called `~`. A node's home
is all that such a user has to name: caches go below it.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path

_USER_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def settle_caches(home: Path) -> None:
    """Give this process and its children the variables of `cache_variables`. Called before a
    library that has a cache is imported."""
    user_home = user_directory()
    os.environ.update(cache_variables(home.absolute(), user_home, os.environ, _can_write))
    if not (any(map(os.environ.get, _USER_NAMES)) or _in_passwd()):
        os.environ["USER"] = f"uid{os.getuid()}"  # which libraries ask for to name files


def user_directory() -> Path | None:
    """The user's home directory by HOME or passwd; None if neither knows it."""
    try:
        directory = Path.home()
    except RuntimeError:
        return None
    return directory if directory.is_absolute() else None


def cache_variables(
    home: Path,
    user: Path | None,
    environ: Mapping[str, str],
    can_write: Callable[[Path], bool],
) -> dict[str, str]:
    """The variables by which libraries find their caches below the node's `home`: none, if they can
    be written in the `user`'s own directory, or `environ` names another."""
    place = home / "cache"
    if user is None:
        return {"HOME": str(place)}
    user_cache = user / ".cache"
    if "XDG_CACHE_HOME" in environ or can_write(user_cache):
        return {}
    variables = {
        "XDG_CACHE_HOME": place,
        "TRITON_HOME": place,
        "FLASHINFER_WORKSPACE_BASE": place,
    }
    # Models that lie in a directory that cannot be written can be read there.
    models = user_cache / "huggingface"
    variables |= {"HF_HOME": models} if models.is_dir() else {}
    return {name: str(path) for name, path in variables.items() if name not in environ}


def _can_write(path: Path) -> bool:
    """Check that this user can write into a directory, or make it."""
    try:
        ancestor = next(place for place in (path, *path.parents) if place.exists())
    except OSError:  # a directory above it cannot be entered
        return False
    return ancestor.is_dir() and os.access(ancestor, os.W_OK | os.X_OK)


def _in_passwd() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True
