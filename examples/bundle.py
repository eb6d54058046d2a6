"""A GPU that cannot be reached from here: a bundle measures there, and its result comes home as a file.

python examples/bundle.py

The bundle runs where sparsegen is not installed: `python layer.pyz run` needs NumPy, SciPy and an NVIDIA driver.
Here the emulator stands for the GPU.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import sparsegen

LAYER = Path(__file__).with_name("pruned_mlp_layer.npz")


def run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


with tempfile.TemporaryDirectory() as folder:
    bundle, result, db = f"{folder}/layer.pyz", f"{folder}/layer.result", f"{folder}/tuning.db"
    which = ("--matrix", str(LAYER), "-n", "8", "--family", "csr_spmm", "--candidates", "3")
    run("-m", "sparsegen", "job", "export", *which, "--for", "emulator", "--db", db, "-o", bundle)
    print(f"the bundle has {Path(bundle).stat().st_size / 1e6:.1f} MB")
    run(bundle, "verify")  # there
    run(bundle, "run", "--out", result)  # there
    run("-m", "sparsegen", "db", "import", result, "--bundle", bundle, "--db", db)  # and here again
    print(sparsegen.lookup(sparsegen.load_matrix(LAYER), n=8, db=db).explain())
