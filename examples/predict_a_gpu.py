"""The variant that should be the fastest on a GPU that is not here: compiled for it, run nowhere (needs nvcc).

python examples/predict_a_gpu.py
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LAYER = Path(__file__).with_name("pruned_mlp_layer.npz")
if shutil.which("nvcc") is None:
    sys.exit("This example needs the CUDA toolkit's nvcc on PATH; it needs no GPU.")

with tempfile.TemporaryDirectory() as folder:
    for gpu in ("nvidia-a100", "nvidia-h200"):
        what = (
            "--matrix",
            str(LAYER),
            "-n",
            "128",
            "--dtype",
            "float16",
            "--family",
            "csr_spmm",
            "--trials",
            "2",
        )
        command = ("tune", *what, "--for", gpu, "--db", f"{folder}/tuning.db", "--json")
        done = subprocess.run(
            [sys.executable, "-m", "sparsegen", *command], check=True, stdout=subprocess.PIPE
        )
        best = json.loads(done.stdout)["predictions"][0]
        settings = best["config"]
        print(f"{gpu}: {best['predicted_us']:.1f} µs predicted, {best['registers']} registers, {settings}")
