"""Operators in the layout of ``kernels``: loaded in a process without sparsegen, as that package loads it."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sparsegen  # noqa: E402
from sparsegen.errors import ConfigError, OperandError, OutputExistsError  # noqa: E402
from sparsegen.integrations.torch import ship_operators  # noqa: E402
from sparsegen.masks import BlockMask  # noqa: E402
from sparsegen.matrix.generators import random_uniform  # noqa: E402

LOADER = """
import importlib.util, json, sys
from pathlib import Path
sys.modules["sparsegen"] = None  # an import of it raises ImportError
import torch
folder = Path(sys.argv[1])
try:
    from kernels import get_local_kernel
except ImportError:  # as it does: a module named by the metadata, from the file of the build
    (build,) = (folder / "build").iterdir()
    name = json.loads((build / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, build / "__init__.py")
    kernel = importlib.util.module_from_spec(spec)
    sys.modules[name] = kernel
    spec.loader.exec_module(kernel)
else:
    kernel = get_local_kernel(folder, backend="cpu")
given, wanted = torch.load(folder / "example.pt")
for name, operands in given.items():
    found = getattr(kernel, name)(*operands)
    found = found[0] if isinstance(found, tuple) else found
    assert torch.equal(found, wanted[name]), name
print(*sorted(kernel.__all__))
"""


def test_functions_have_the_bits_of_operators(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    matrix = random_uniform(96, 128, 0.2, 0)
    options = {"device": "emulator", "dense": "never"}
    up = sparsegen.prepare(matrix, n=24, layout="column", epilogue="bias", **options)
    tokens = {"queries": 64, "keys": 64, "kv_heads": 1, "group": 1, "head_dim": 64, "dtype": "float16"}
    attend = sparsegen.prepare(operator="block_attention", masks="all", block="16x16", **tokens, **options)
    folder = tmp_path / "kernel"
    launches = ship_operators({"up": up, "attend": attend}, folder, name="pruned-block")
    assert [launch.problem.operator for launch in launches] == ["spmm", "block_attention"]
    x, bias = rng.standard_normal((24, 128), np.float32), rng.standard_normal(96, np.float32)
    q, k, v = (rng.standard_normal((1, 64, 64)).astype(np.float16) for _ in range(3))
    mask = BlockMask.from_blocks(rng.random((4, 4)) < 0.5, (16, 16))
    given = {"up": (x, bias), "attend": (q, k, v, mask.words)}
    wanted = {"up": up(x, bias=bias), "attend": attend(q, k, v, mask)}
    tensors = {name: tuple(map(torch.tensor, arrays)) for name, arrays in given.items()}
    results = {name: torch.from_numpy(np.asarray(array)) for name, array in wanted.items()}
    torch.save((tensors, results), folder / "example.pt")

    (build,) = (folder / "build").iterdir()
    assert build.name.startswith("torch-stable-abi210-cpu-")
    metadata = json.loads((build / "metadata.json").read_text())
    digests = metadata["digest"]["files"]
    assert digests.keys() == {"__init__.py", "kernels.so", "packed.pt"}
    for name, digest in digests.items():
        assert base64.b64decode(digest) == hashlib.sha256((build / name).read_bytes()).digest(), name
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(folder)],
        cwd=folder,
        env={
            "PATH": "/usr/bin:/bin",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(torch.get_num_threads()),  # others add in another order
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "attend up\n", done.stdout + done.stderr


def test_what_is_no_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperandError, match="by names of functions, got none"):
        ship_operators({}, tmp_path / "out", name="some-kernel")
    operator = sparsegen.prepare(random_uniform(16, 16, 0.2, 0), n=8, device="emulator", dense="never")
    with pytest.raises(OperandError, match=r"got \['no name'\]"):
        ship_operators({"no name": operator}, tmp_path / "out", name="some-kernel")
    with pytest.raises(ConfigError, match="small letters, digits and dashes, got 'A_b'"):
        ship_operators({"up": operator}, tmp_path / "out", name="A_b")
    with pytest.raises(OutputExistsError, match="choose another name"):
        ship_operators({"up": operator}, tmp_path, name="some-kernel")
