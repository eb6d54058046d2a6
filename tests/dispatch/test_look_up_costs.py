"""Costs of an untuned look-up in steps, which no busy machine changes: work that does not depend on it was done
before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from call_costs import Steps, steps_of

from sparsegen.dispatch import neighbours
from sparsegen.dispatch.choice import choose, forget
from sparsegen.dispatch.chosen import How
from sparsegen.kernels import families_of
from sparsegen.kernels.base import Device
from sparsegen.matrix import features
from sparsegen.matrix.formats import as_csr
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.tuning_db import reading
from sparsegen.tuning_db.layers import Layers
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.seeds_reader import packaged, seeds

MOST_MODULES, MOST_DATACLASSES = 134, 46  # of a first look-up
MOST_STATEMENTS, MOST_FILES = 23, 2


@pytest.fixture(autouse=True)
def all_families_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "families_of", families_of)


@pytest.fixture
def database() -> Iterator[Layers]:
    layers = Layers([seeds()])
    yield layers
    forget(layers)


def device() -> Device:
    """The one that the packaged results are of."""
    return seeds().list_workloads()[0].device


def layer(seed: int, *, rows: int = 3072, n: int = 128, dtype: DType = DType.FLOAT16) -> Workload:
    """A linear layer of an encoder, of one pattern for each seed."""
    problem = SpmmProblem(rows, 768, n, dtype, Layout.COLUMN)
    return Workload.of(problem, random_uniform(rows, 768, 0.1, seed))


def steps(of: Workload, database: Layers) -> Steps:
    """The steps of a look-up that was not made before."""
    return steps_of(lambda: choose(of, device(), database), before=0)


def test_layers_that_are_alike_read_and_weigh_what_is_near_once(database: Layers) -> None:
    assert choose(layer(1), device(), database).how is How.NEAREST
    found = steps(layer(2), database)
    assert choose(layer(2), device(), database).how is How.NEAREST
    assert found.python["_listed"] == found.python["_telling"] == found.python["_solution"] == 0
    assert found.python["position"] == 2, "of this workload, to find what is near and to weigh it"
    assert found.c["execute"] <= 4, "measurements, dense times, probes and predictions of this very workload"


def test_layers_of_equal_sizes_check_what_these_rule_out_once(database: Layers) -> None:
    before, found, other = (
        steps(of, database).python for of in (layer(1, n=33), layer(2, n=33), layer(3, rows=771, n=33))
    )
    assert before["shaped"] > 0 and other["shaped"] > 0
    assert found["shaped"] == 0, "what a heuristic makes of the sizes alone is kept"
    assert found["constraints"] < before["constraints"] / 4


def test_families_that_do_not_compute_it_are_not_asked(database: Layers) -> None:
    of = layer(1, dtype=DType.FLOAT32)
    able = [f for f in families_of("spmm") if f.computes(of.problem)]
    assert len(able) < len(families_of("spmm"))
    assert steps(of, database).python["heuristic"] == len(able)


def test_patterns_of_equal_features_share_what_is_expected(database: Layers) -> None:
    """2:4 sparsity is such a case: each row has as many nonzeros as any other, and each block of 16 × 16 as any."""

    def of(seed: int) -> Workload:
        mask = np.zeros((512 * 64, 4), dtype=np.float32)
        rng = np.random.default_rng(seed)
        np.put_along_axis(
            mask, rng.permuted(np.tile(np.arange(4), (512 * 64, 1)), axis=1)[:, :2], 1.0, axis=1
        )
        return Workload.of(SpmmProblem(512, 256, 128, DType.FLOAT16), as_csr(mask.reshape(512, 256)))

    first = choose(of(1), device(), database)
    assert of(1).features == of(2).features and of(1).fingerprint != of(2).fingerprint
    found = steps(of(2), database)
    assert found.python["heuristic"] == found.python["analytic_us"] == 0
    assert choose(of(2), device(), database) == first


FIRST = """
import json, sys
import numpy
import sparsegen
from sparsegen.matrix.generators import random_uniform

opened = []
matrix, before = random_uniform(2048, 1024, 0.2, 0), set(sys.modules)
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
from sparsegen.kernels.base import Device
from sparsegen.tuning_db import sqlite_reader

asked, run = [], sqlite_reader.SqliteReader._rows
sqlite_reader.SqliteReader._rows = lambda self, query, given: asked.append(query) or run(self, query, given)
choice = sparsegen.lookup(matrix, n=128, dtype="float16", device=eval(sys.argv[1]))
loaded = set(sys.modules) - before
made = [
    kind
    for name in sys.modules
    if name.startswith("sparsegen")
    for kind in vars(sys.modules[name]).values()
    if isinstance(kind, type) and "__dataclass_fields__" in vars(kind) and kind.__module__ == name
]
print(json.dumps({
    "how": choice.how,
    "modules": sorted(loaded),
    "dataclasses": sorted(kind.__qualname__ for kind in made),
    "statements": len(asked),
    "files": [name for name in opened if not name.endswith((".py", ".pyc", ".so"))],
}))
"""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Facts of the first look-up in a process, by what is near among the packaged results."""
    own = {"SPARSEGEN_DB": str(tmp_path_factory.mktemp("first") / "tuning.db")}
    seeds().list_workloads()  # the file is made
    done = subprocess.run(
        [sys.executable, "-c", FIRST, repr(device())],
        cwd=Path(__file__).parents[2],
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["how"] == How.NEAREST
    return found


def test_a_first_look_up_imports_little(first: dict[str, Any]) -> None:
    """A module takes 0.2 ms on a fast host, a dataclass 0.5 ms more; named tuples take a fifth of that."""
    assert len(first["modules"]) <= MOST_MODULES, first["modules"]
    assert len(first["dataclasses"]) <= MOST_DATACLASSES, first["dataclasses"]
    beside = {"logging", "json_reader", "pins_file", "publish", "output_places", "network_tiles", "thread"}
    assert not beside & {name.rpartition(".")[2] for name in first["modules"]}


def test_a_first_look_up_asks_and_reads_little(first: dict[str, Any]) -> None:
    """One statement reads the workloads of the kind, and one the times of each of twelve neighbours."""
    assert first["statements"] <= MOST_STATEMENTS
    assert len(first["files"]) <= MOST_FILES, first["files"]


def test_workloads_of_other_kinds_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    convert = reading.LISTED.convert
    monkeypatch.setattr(
        reading, "LISTED", reading.LISTED._replace(convert=lambda row: read.append(row) or convert(row))
    )
    found = packaged().list_workloads(kind=layer(1).problem.kind, like=device())
    assert len(read) == len(found) > 0


def test_few_nonzeros_are_counted_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def in_threads(work: Any, parts: Any, threads: int | None = None) -> list[Any]:
        asked.append(threads)
        return [work(part) for part in parts]

    monkeypatch.setattr(features, "in_threads", in_threads)
    for density in (0.1, 0.3, 0.7):
        features.occupied_blocks(random_uniform(1024, 2048, density, 0), 16)
    assert asked == [1, 1, None]
