"""Private folders and files, which no other user can write: what is loaded from them runs as their user."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from sparsegen.errors import CacheError

ROOT = 0


def distrust(status: os.stat_result) -> str:
    """Explains why others than this process's user (and root) could have written a file or folder; empty if they could
    not.
    """
    if status.st_uid not in (os.geteuid(), ROOT):
        return f"it belongs to {_user_name(status.st_uid)}"
    if status.st_mode & stat.S_IWOTH:
        return "every user may write it"
    if status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid):
        return f"the group {_group_name(status.st_gid)} may write it"
    return ""


def private_folder(folder: Path) -> None:
    """Make a folder of the cache, for its user alone, where it is not there.

    Raises:
        CacheError: it cannot be made, or others could have written what lies in it.
    """
    if not folder.is_absolute():
        raise CacheError(
            f"{folder} is no place for compiled variants, as this user has no home folder, or the working folder is "
            "gone: set SPARSEGEN_CACHE to a folder"
        )
    try:
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        for place in reversed(missing):
            place.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(0, "it is not a folder")
    except OSError as error:
        raise unusable(folder, error) from error
    why = distrust(status)
    if why:
        raise CacheError(
            f"{folder} is not used for compiled variants, as {why}, and could have them run what they like: "
            f"`chmod go-w` it if it is yours, or set SPARSEGEN_CACHE to a folder of your own"
        )


def unusable(folder: Path, error: OSError) -> CacheError:
    """The error for a folder of the cache that cannot be read or written."""
    return CacheError(
        f"{error.filename or folder}: {error.strerror or error}; compiled variants need a folder that can be "
        "written and has space: set SPARSEGEN_CACHE to one"
    )


def _is_private_group(number: int) -> bool:
    """True if a group is one user's own, as many systems make one for each: then it may write what its user may.

    Members of a group are those that it lists, and every user whose primary group it is.
    """
    with contextlib.suppress(ImportError, KeyError):
        import grp
        import pwd

        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
        members = {*group.gr_mem, *(other.pw_name for other in pwd.getpwall() if other.pw_gid == number)}
        return group.gr_name == user.pw_name and user.pw_gid == number and members <= {user.pw_name}
    return False


def _user_name(number: int) -> str:
    with contextlib.suppress(ImportError, KeyError):
        import pwd

        return pwd.getpwuid(number).pw_name
    return f"user {number}"


def _group_name(number: int) -> str:
    with contextlib.suppress(ImportError, KeyError):
        import grp

        return grp.getgrgid(number).gr_name
    return str(number)
