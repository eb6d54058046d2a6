"""Searches in which the machine or variants fail: what is recorded of it, and what ends the search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from patience import patience
from toy_searches import bad_day, behave, recorded
from tuning_fakes import FakeToolchain, tune_toy

from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import (
    CacheError,
    DeviceUnavailableError,
    LaunchError,
    MachineError,
    NoVariantError,
    SparsegenError,
)
from sparsegen.tuning_db.records import Outcome
from sparsegen.tuning_db.store import Store

pytestmark = pytest.mark.usefixtures("toy")


class Troubled(FakeToolchain):
    """Fails as a machine does from the third compile on, or always if it is not ``late``."""

    def __init__(self, folder: Path, error: Exception) -> None:
        super().__init__(folder)
        self.error = error

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        if len(self.compiled) == 3:
            raise self.error
        return super().compile(family, entry, source, timeout=timeout)


@pytest.mark.parametrize(
    "error",
    (
        MachineError("g++ was ended by SIGKILL"),
        CacheError("No space left on device; set SPARSEGEN_CACHE"),
        OSError(28, "No space left on device"),
    ),
)
def test_trouble_of_the_machine_ends_the_search_and_is_not_recorded(
    error: Exception, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(SparsegenError, match=r"SIGKILL|No space left"):
        tune_toy(store, tmp_path, trials=12, toolchain=Troubled(tmp_path, error), jobs=1)
    assert {m.outcome for m in recorded(store)} <= {Outcome.OK} and len(recorded(store)) <= 3
    assert tune_toy(store, tmp_path, trials=12).counts.tried == 12, "and it goes on where it was"


@pytest.mark.parametrize("name", ("SIGKILL", "SIGTERM", "SIGHUP", "SIGXCPU"))
def test_a_worker_that_somebody_kills_twice_ends_the_search(
    name: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_day(monkeypatch, name)
    with pytest.raises(MachineError, match=f"failed twice.*{name}"):
        tune_toy(store, tmp_path, trials=12)
    assert {m.outcome for m in recorded(store)} <= {Outcome.OK}


def test_a_device_that_is_lost_for_good_ends_the_search(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variant that was running when it left the bus is not to blame."""
    bad_day(monkeypatch, "lost for good", tmp_path)
    with pytest.raises(LaunchError, match="no such device"):
        tune_toy(store, tmp_path, trials=12)
    assert {m.outcome for m in recorded(store)} <= {Outcome.OK}


class Cleared(FakeToolchain):
    """Deletes what it compiles, or cuts it off, the first time."""

    def __init__(self, folder: Path, spoil: Callable[[Path], object]) -> None:
        super().__init__(folder)
        self.spoil = spoil

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        is_first = source not in self.compiled
        compiled = super().compile(family, entry, source, timeout=timeout)
        if is_first:
            self.spoil(compiled.binary)
        return compiled


@pytest.mark.parametrize("spoil", (Path.unlink, lambda path: path.write_bytes(b"")))
def test_a_binary_that_vanishes_before_it_is_loaded_is_compiled_again(
    spoil: Callable[[Path], object], store: Store, tmp_path: Path
) -> None:
    """`sparsegen cache clear` beside a search does this."""
    result = tune_toy(store, tmp_path, trials=12, toolchain=Cleared(tmp_path, spoil))
    assert result.counts.done == 12 and not result.counts.failed


@pytest.mark.parametrize(
    ("behaviour", "outcome", "reason"),
    [
        ("does_not_compile", Outcome.COMPILE_FAILED, "not today"),
        ("wrong", Outcome.WRONG, "values are wrong"),
        ("unstable", Outcome.WRONG, "right at first"),
        ("crash", Outcome.CRASHED, "SIGSEGV"),
        ("fault", Outcome.CRASHED, "illegal memory access"),
        ("hang", Outcome.TIMED_OUT, "no answer within"),
    ],
)
def test_a_bad_variant_is_recorded_and_never_wins(
    behaviour: str,
    outcome: Outcome,
    reason: str,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behave(monkeypatch, behaviour, size=8, width=4)  # it would be the fastest
    result = tune_toy(store, tmp_path, trials=12, variant_seconds=patience(1.0))
    bad = [m for m in recorded(store) if m.outcome is not Outcome.OK]
    assert [(m.outcome, m.variant.config.to_dict()["size"]) for m in bad] == [(outcome, 8)]
    assert reason in bad[0].reason and bad[0].sample is None
    assert result.counts.done == 11 and result.counts.failed == 1
    assert result.winner.variant != bad[0].variant and result.winner.outcome is Outcome.OK


def test_when_nothing_works_the_reasons_are_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, "wrong")
    with pytest.raises(NoVariantError, match=r"none of the 3 variants .* 3 × wrong: 1 of 192 values"):
        tune_toy(store, tmp_path, trials=3)
    assert [m.outcome for m in recorded(store)] == [Outcome.WRONG] * 3


def test_a_missing_compiler_ends_the_run_and_blames_no_variant(store: Store, tmp_path: Path) -> None:
    class Missing(FakeToolchain):
        def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
            raise DeviceUnavailableError("install a compiler")

    with pytest.raises(DeviceUnavailableError, match="install a compiler"):
        tune_toy(store, tmp_path, toolchain=Missing(tmp_path))
    assert not recorded(store)
