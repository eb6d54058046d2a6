"""Other users who could have written a file: owners, everybody, and groups, whose members are not all listed as
such.
"""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from sparsegen.system.private import distrust

USER, GROUP = 4321, 5432  # of the one who runs this, in the databases that these tests make


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of this process's user that its group may write."""
    path = tmp_path / "kernel.so"
    path.write_bytes(b"")
    path.chmod(0o664)
    return path


def _user(name: str, number: int, group: int) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", number, group, "", "/", "/bin/sh"))


ME, OTHER = ("me", USER, GROUP), ("other", USER + 1, GROUP + 1)


@pytest.mark.parametrize(
    ("users", "group_name", "listed", "is_mine"),
    [
        ([ME], "me", [], True),
        ([ME, OTHER], "me", ["me"], True),
        ([ME, OTHER], "me", ["other"], False),
        ([ME, ("mallory", USER + 2, GROUP)], "me", [], False),  # `useradd -g me mallory` lists no member
        ([ME], "staff", [], False),
        ([("me", USER, GROUP + 9)], "me", [], False),
    ],
)
def test_a_group_is_private_only_without_other_members(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    users: list[tuple[str, int, int]],
    group_name: str,
    listed: list[str],
    is_mine: bool,
) -> None:
    entries = [_user(*user) for user in users]
    found = os.stat_result((0o100664, 1, 1, 1, USER, GROUP, 0, 0, 0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: next(e for e in entries if e.pw_uid == number))
    monkeypatch.setattr(pwd, "getpwall", lambda: entries)
    monkeypatch.setattr(grp, "getgrgid", lambda number: grp.struct_group((group_name, "x", number, listed)))
    assert (distrust(found) == "") is is_mine
    if not is_mine:
        assert distrust(found) == f"the group {group_name} may write it"


def test_nobody_may_write_what_everybody_may(file: Path) -> None:
    file.chmod(0o666)
    assert distrust(file.stat()) == "every user may write it"
    file.chmod(0o644)
    assert distrust(file.stat()) == ""


def test_others_files_are_not_ones_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.chmod(0o644)
    found = os.stat_result((*tuple(file.stat())[:4], 4322, *tuple(file.stat())[5:10]))
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    assert "belongs to" in distrust(found)
