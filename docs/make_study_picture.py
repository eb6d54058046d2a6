"""Draws docs/study.svg: a search of the packaged results as `optuna.visualization` shows it.

    python -m docs.make_study_picture

It writes the study into a storage, as `sparsegen db study` does, and loads it from there.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import matplotlib as mpl
import optuna
from matplotlib.ticker import MaxNLocator

from benchmarks.pictures import compact
from sparsegen.tuning.replay import recorded_study
from sparsegen.tuning_db.seeds_reader import seeds

PICTURE = Path(__file__).with_name("study.svg")
SEARCH = "8d25f4b1a349"  # fingerprint: one of the workloads of which the seeds keep most
PROBLEM = {"m": 1024, "k": 1024, "n": 1024, "dtype": "float16", "layout": "row"}


def main() -> None:
    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "sparsegen", "svg.fonttype": "none", "figure.figsize": (7, 3.5)})
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    (tuned,) = [
        t
        for t in seeds().list_workloads()
        if t.workload.fingerprint.startswith(SEARCH)
        and PROBLEM.items() <= t.workload.problem.to_dict().items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/studies.db"
        written = recorded_study.write(
            recorded_study.open_storage(url),
            tuned.workload,
            tuned.device,
            seeds().measurements(tuned.workload, tuned.device),
        )
        study = optuna.load_study(storage=url, study_name=written.name)
        axes = optuna.visualization.matplotlib.plot_optimization_history(study, target_name="median, µs")
        axes.set_yscale("log")
        axes.set_title("")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.figure.savefig(PICTURE, metadata={"Date": None}, bbox_inches="tight")
    PICTURE.write_text(compact(PICTURE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
