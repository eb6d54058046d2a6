"""All layers of a model, searched on all GPUs of this host at once; where there is none, on two emulated devices.

python examples/many_gpus.py
"""

import os
import subprocess
import sys
import tempfile

import numpy as np
import scipy.sparse

os.environ.setdefault("SPARSEGEN_EMULATORS", "2")  # what the emulator passes for; GPUs are counted
rng = np.random.default_rng(0)
with tempfile.TemporaryDirectory() as folder:
    layers = {f"blocks.{i}.mlp": scipy.sparse.random(64, 48 + 16 * i, 0.1, rng=rng).toarray() for i in (0, 1)}
    np.savez(f"{folder}/model.npz", **{name: layer.astype(np.float32) for name, layer in layers.items()})
    command = ("tune-model", f"{folder}/model.npz", "--tokens", "8", "--trials", "2", "--devices", "all")
    more = ("--no-baselines", "--db", f"{folder}/tuning.db")
    subprocess.run([sys.executable, "-m", "sparsegen", *command, *more], check=True)
