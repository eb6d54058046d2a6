"""Networks over several processes of torchrun: two of them, on the emulator, that talk by gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import LONG

from sparsegen.errors import ConfigError
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.settings import Settings

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


def test_two_processes_give_the_results_of_one(emulator_settings: Settings, tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"),
            Path(__file__).with_name("distributed_worker.py"),
            told,
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
            "SPARSEGEN_DB": str(tmp_path / "tuning.db"),
        },
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in told.iterdir()) == ["rank 0", "rank 1"]


def test_without_a_group_it_says_what_to_start() -> None:
    from sparsegen.integrations.torch.networks.distributed_network import DistributedNetwork

    with pytest.raises(ConfigError, match="torchrun"):
        DistributedNetwork(SparseNetwork(radixnet(64, 2)), 4)
