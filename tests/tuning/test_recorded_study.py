"""A recorded search as an Optuna study: complete, in order, and what Optuna's own tools open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from tuning_samples import H100, failed, timed, workload

from sparsegen.errors import DatabaseError
from sparsegen.kernels.config import UnknownConfig
from sparsegen.tuning.replay import recorded_study
from sparsegen.tuning_db.records import Measurement, Outcome, Variant

WORKLOAD = workload()


def measurements() -> list[Measurement]:
    """Makes a search of six variants with one failure, and two finalists."""
    sizes = [timed(20.0 - i, at=i, tile_n=tile) for i, tile in enumerate((32, 64, 128, 256))]
    return [
        *sizes,
        failed(Outcome.WRONG, "row 3", at=5, tile_n=64, registers=64),
        timed(15.5, at=6, tile_k=16),
        timed(15.0, at=7, tile_n=256, final=True),
        timed(14.0, at=8, tile_k=16, final=True),
    ]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'studies.db'}"


def written(url: str, found: list[Measurement]) -> recorded_study.RecordedStudy:
    return recorded_study.write(recorded_study.open_storage(url), WORKLOAD, H100, found)


def test_every_variant_is_a_trial_in_the_order_of_its_measurement(url: str) -> None:
    found = written(url, measurements())
    study = optuna.load_study(storage=url, study_name=found.name)
    assert (found.trials, found.left_out) == (6, 0)
    assert [t.value for t in study.trials] == [20.0, 19.0, 18.0, 17.0, None, 15.5]
    assert [t.state for t in study.trials].count(TrialState.FAIL) == 1
    assert study.trials[4].user_attrs["reason"] == "row 3"
    assert [t.user_attrs.get("final_us") for t in study.trials] == [None, None, None, 15.0, None, 14.0]
    best = study.best_trial
    assert best.params["family"] == "csr_spmm" and best.params["csr_spmm.tile_k"] == 16
    assert best.user_attrs["registers"] == 40 and best.user_attrs["source_digest"] == "ab" * 32
    assert best.datetime_start is not None and study.trials[0].datetime_start is not None
    assert (best.datetime_start - study.trials[0].datetime_start).total_seconds() == 6
    assert study.user_attrs["operator"] == "spmm" and study.user_attrs["nonzeros"] == WORKLOAD.features.nnz


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_optunas_own_tools_open_it(url: str) -> None:
    plots = pytest.importorskip("matplotlib.figure") and optuna.visualization.matplotlib
    found = written(url, measurements())
    study = optuna.load_study(storage=url, study_name=found.name)
    history = plots.plot_optimization_history(study)
    assert [line.get_ydata()[-1] for line in history.get_lines()] == [15.5]
    assert plots.plot_slice(study, params=["csr_spmm.tile_n"]).get_xlabel() == "csr_spmm.tile_n"


def test_it_is_replaced_and_other_studies_are_not(url: str) -> None:
    other = optuna.create_study(storage=url, study_name="mine")
    other.ask()
    written(url, measurements()[:2])
    found = written(url, measurements())
    assert sorted(optuna.get_all_study_names(url)) == sorted(["mine", found.name])
    assert len(optuna.load_study(storage=url, study_name=found.name).trials) == 6
    assert len(optuna.load_study(storage=url, study_name="mine").trials) == 1
    optuna.delete_study(study_name=found.name, storage=url)
    optuna.create_study(storage=url, study_name=found.name)
    with pytest.raises(DatabaseError, match="sparsegen did not write"):
        written(url, measurements())


def test_what_is_not_installed_is_left_out(url: str) -> None:
    unknown = Variant(UnknownConfig.of("future_spmm", {"x": 1}), "cd" * 32)
    found = written(url, [*measurements(), replace(timed(1.0, at=9), variant=unknown)])
    assert (found.trials, found.left_out) == (6, 1)


def test_progress_is_told(url: str) -> None:
    seen: list[tuple[int, int]] = []
    recorded_study.write(
        recorded_study.open_storage(url),
        WORKLOAD,
        H100,
        measurements()[:3],
        lambda *numbers: seen.append(numbers),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("given", ["studies.db", "nosuch://me:secret@host/x", "sqlite:////nowhere/at/all.db"])
def test_a_storage_that_cannot_be_opened_is_refused_without_its_password(given: str) -> None:
    with pytest.raises(DatabaseError) as refused:
        recorded_study.open_storage(given)
    assert "secret" not in str(refused.value)


def test_a_variant_of_finals_alone_is_one_trial(url: str) -> None:
    finals = [timed(15.0 - i, at=i, tile_n=64, final=True) for i in range(3)]
    found = written(url, finals)
    [trial] = optuna.load_study(storage=url, study_name=found.name).trials
    assert found.trials == 1
    assert (trial.value, trial.user_attrs["final_us"]) == (13.0, 13.0)
