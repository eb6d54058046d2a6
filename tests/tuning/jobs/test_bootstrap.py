"""Checks of a bundle before anything of it is trusted: every file against its digest, and how it starts itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from job_samples import Files, rebuilt, sources_alone

from sparsegen.tuning.jobs import bootstrap
from sparsegen.tuning.jobs.bundle import JOB, open_bundle


class StartedError(Exception):
    """In the place of another program that takes this one's place."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "b.pyz"
    with pytest.MonkeyPatch.context() as patch:
        sources_alone(path, patch)
    return path


def test_a_whole_bundle_is_named_for_its_manifest(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        assert bootstrap.checked(bundle) == (opened.digest[:24], False)


@pytest.mark.parametrize("name", [JOB, "sparsegen/errors.py", "__main__.py"])
def test_other_bytes_of_the_same_number_are_found(bundle: Path, tmp_path: Path, name: str) -> None:
    """The archive's own checksums are right: it was packed anew."""

    def change(files: Files) -> None:
        files[name] = files[name][:-2] + bytes([files[name][-2] ^ 1]) + files[name][-1:]

    changed = rebuilt(bundle, tmp_path / "c.pyz", change, mend=False)
    with pytest.raises(ValueError, match=f"{name} is not what it was"):
        bootstrap.checked(changed)


@pytest.mark.parametrize("extra", [True, False])
def test_files_beside_the_manifest_are_found(bundle: Path, tmp_path: Path, extra: bool) -> None:
    def change(files: Files) -> None:
        if extra:
            files["sparsegen/evil.py"] = b"x"
        else:
            del files["sparsegen/errors.py"]

    changed = rebuilt(bundle, tmp_path / "c.pyz", change, mend=False)
    with pytest.raises(ValueError, match="not those of its manifest"):
        bootstrap.checked(changed)


def test_it_starts_its_own_sparsegen_with_the_words_it_was_given(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    def exec_instead(*words: Any) -> None:
        started.extend(words)
        raise StartedError

    monkeypatch.setattr(os, "execve", exec_instead)
    monkeypatch.setattr(sys, "argv", [str(bundle), "run", "--budget", "5"])
    monkeypatch.setenv("SPARSEGEN_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    with pytest.raises(StartedError):
        bootstrap.main()
    program, command, environment = started
    assert program == sys.executable
    assert command == [
        *(sys.executable, "-P", "-m", "sparsegen.cli.bundle"),
        *(str(bundle), "run", "--budget", "5"),
    ]
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(bundle), "elsewhere"]
    assert environment["SPARSEGEN_DRIVER"] == "direct" and environment["SPARSEGEN_KERNELS"] == ""
    assert environment["SPARSEGEN_DB"].startswith(str(tmp_path))


def test_a_damaged_bundle_starts_nothing(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = rebuilt(bundle, tmp_path / "c.pyz", lambda f: f.update({JOB: b"{}"}), mend=False)
    monkeypatch.setattr(os, "execve", lambda *words: pytest.fail("it was started"))
    monkeypatch.setattr(sys, "argv", [str(damaged), "info"])
    with pytest.raises(SystemExit) as ended:
        bootstrap.main()
    assert "is damaged, and is not run" in str(ended.value)
