"""Exchange of one machine's measurements: export to JSON, import into another database, look up there.

python examples/database_exchange.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import sparsegen

LAYER = Path(__file__).with_name("pruned_mlp_layer.npz")


def command(*arguments: str) -> None:
    print("$ sparsegen", *(Path(a).name for a in arguments), flush=True)
    subprocess.run([sys.executable, "-m", "sparsegen", *arguments], check=True)


with tempfile.TemporaryDirectory() as folder:
    mine, yours, file = f"{folder}/mine.db", f"{folder}/yours.db", f"{folder}/results.json"
    layer = sparsegen.load_matrix(LAYER)
    sparsegen.tune(layer, n=8, trials=2, families=["csr_spmm"], db=mine)
    command("db", "export", "--db", mine, "-o", file)
    command("db", "import", file, "--db", yours)
    command("db", "diff", mine, yours)
    print(sparsegen.lookup(layer, n=8, db=yours).explain())
