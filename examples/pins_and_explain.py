"""Reasons of a choice, by `explain`; and a pin, reviewed like code, fixes the choice whatever is measured later.

python examples/pins_and_explain.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import sparsegen

LAYER = Path(__file__).with_name("pruned_mlp_layer.npz")

with tempfile.TemporaryDirectory() as folder:
    os.environ |= {"SPARSEGEN_DB": f"{folder}/tuning.db", "SPARSEGEN_PINS": f"{folder}/pins.json"}
    layer = sparsegen.load_matrix(LAYER)
    print(sparsegen.lookup(layer, n=8).explain(), "\n")

    found = sparsegen.tune(layer, n=8, trials=3, families=["csr_spmm", "panel_spmm"])
    print(sparsegen.lookup(layer, n=8).explain(), "\n")

    other = {"csr_spmm": "panel_spmm", "panel_spmm": "csr_spmm"}[found.winner.variant.family]
    pin = ("db", "pin", found.workload.fingerprint[:8], "--family", other, "--note", "released with 2.1")
    subprocess.run([sys.executable, "-m", "sparsegen", *pin], check=True, stdout=subprocess.DEVNULL)
    print(sparsegen.lookup(layer, n=8).explain())
