"""A search looked into with Optuna's own tools: what was tried, and which tunables mattered.

python examples/optuna_study.py
"""

import subprocess
import sys
import tempfile

import numpy as np
import optuna
import scipy.sparse

import sparsegen

matrix = scipy.sparse.random(128, 96, 0.1, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
with tempfile.TemporaryDirectory() as folder:
    db, storage = f"{folder}/tuning.db", f"sqlite:///{folder}/studies.db"
    found = sparsegen.tune(matrix, n=16, families=["uspmm"], trials=8, db=db)
    study = ("db", "study", found.workload.fingerprint[:8], "--storage", storage, "--db", db)
    subprocess.run([sys.executable, "-m", "sparsegen", *study], check=True, stdout=subprocess.DEVNULL)

    [summary] = optuna.get_all_study_summaries(storage)
    recorded = optuna.load_study(study_name=summary.study_name, storage=storage)
    print(f"{summary.study_name.rpartition(',')[0]}: {len(recorded.trials)} trials")
    for trial in sorted(recorded.trials, key=lambda t: t.values or [np.inf])[:3]:
        print(" ", trial.params)
    for name, share in optuna.importance.get_param_importances(recorded).items():
        print(f"  {name} explains {share:.0%} of the differences in time")
# optuna-dashboard sqlite:///studies.db shows the same in a browser
