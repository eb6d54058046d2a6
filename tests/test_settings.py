"""Settings: what the environment says, and what holds where it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsegen.errors import ConfigError
from sparsegen.settings import Settings


def test_defaults_are_below_the_users_folders() -> None:
    settings = Settings.from_environment({})
    assert settings.db.endswith("tuning.db") and settings.cache.is_absolute()
    assert (settings.device, settings.nvcc, settings.cxx) == (None, None, "g++")


def test_an_empty_variable_counts_as_not_set() -> None:
    names = ("DB", "CACHE", "DEVICE", "NVCC", "COMPILER", "NVRTC")
    empty = dict.fromkeys([*(f"SPARSEGEN_{name}" for name in names), "CXX", "CUDA_HOME"], "")
    assert Settings.from_environment(empty) == Settings.from_environment({})


def test_a_relative_cache_does_not_move_with_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = Settings.from_environment({"SPARSEGEN_CACHE": "cache"}).cache
    monkeypatch.chdir("/")
    assert cache == tmp_path / "cache"


@pytest.mark.parametrize(
    ("word", "is_on"),
    [
        *((word, True) for word in ("1", "true", "True", "yes", "ON")),
        *((w, False) for w in ("0", "false", "No", "off", "")),
    ],
)
def test_a_switch_is_on_or_off(word: str, is_on: bool) -> None:
    assert Settings.from_environment({"SPARSEGEN_DETERMINISTIC": word}).deterministic is is_on


def test_another_word_is_no_switch() -> None:
    with pytest.raises(ConfigError, match="is 1, true, yes, on, or 0, false, no, off, not 'maybe'"):
        Settings.from_environment({"SPARSEGEN_DETERMINISTIC": "maybe"})
