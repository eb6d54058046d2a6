"""A checkpoint in several safetensors files, pruned in place and tuned layer by layer; no package for it is needed.

python examples/safetensors_shards.py
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np


def write_shard(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """The format: the length of a JSON header, the header, the data."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in tensors.values()))


def command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "sparsegen", *arguments], check=True)


rng = np.random.default_rng(0)
with tempfile.TemporaryDirectory() as folder:
    names = {f"layers.{i}.mlp.weight": f"model-{i + 1:05}-of-00002.safetensors" for i in range(2)}
    for name, file in names.items():
        write_shard(Path(folder, file), {name: rng.standard_normal((64, 48), dtype=np.float32)})
        command(
            "prune",
            f"{folder}/{file}",
            "--pattern",
            "uniform",
            "--sparsity",
            "0.8",
            "-o",
            f"{folder}/pruned-{file}",
        )
    index = Path(folder, "pruned.safetensors.index.json")
    listed = {name: f"pruned-{file}" for name, file in names.items()}
    index.write_text(json.dumps({"weight_map": listed}), encoding="utf-8")
    what = ("--tokens", "8", "--trials", "2", "--no-baselines", "--db", f"{folder}/tuning.db")
    command("tune-model", str(index), *what)
