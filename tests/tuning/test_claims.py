"""Claims of candidates among equal searches."""

from __future__ import annotations

from pathlib import Path

import pytest
from tuning_fakes import ToyConfig

from sparsegen.errors import CacheError
from sparsegen.tuning.loop import claims as claims_module
from sparsegen.tuning.loop.claims import Claims, Taken

ONE, OTHER = ToyConfig(size=1), ToyConfig(size=2)


def test_a_candidate_is_one_searchs_until_it_is_given_back(tmp_path: Path) -> None:
    a, b = Claims(tmp_path / "search"), Claims(tmp_path / "search")
    assert a.take(ONE) is Taken.FIRST and b.take(ONE) is Taken.BUSY
    assert b.take(OTHER) is Taken.FIRST and a.take(OTHER) is Taken.BUSY
    a.give_back(ONE)
    a.give_back(ONE)
    assert b.take(ONE) is Taken.AGAIN
    a.close()
    assert (tmp_path / "search").exists()
    c = Claims(tmp_path / "search")
    assert c.take(ONE) is Taken.BUSY
    b.close()
    assert c.take(ONE) is Taken.AGAIN
    c.close()
    assert not (tmp_path / "search").exists(), "the last one cleans up"


def test_a_cache_that_was_cleared_claims_nothing(tmp_path: Path) -> None:
    a = Claims(tmp_path / "search")
    (tmp_path / "search" / "searches").unlink()
    (tmp_path / "search").rmdir()
    assert a.take(ONE) is Taken.FIRST
    a.give_back(ONE)
    a.close()


def test_a_file_system_without_locks_shares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: object, how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(claims_module.fcntl, "flock", refuse)
    a, b = Claims(tmp_path / "search"), Claims(tmp_path / "search")
    assert a.take(ONE) is Taken.FIRST and b.take(ONE) is Taken.FIRST
    a.close()
    b.close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="SPARSEGEN_CACHE"):
        Claims(tmp_path / "file" / "search")
