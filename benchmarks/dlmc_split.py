"""Split of the layers of the Deep Learning Matrix Collection (DLMC): no packaged result may know the test half.

    python -m benchmarks.dlmc_split --data DLMC

Half of the layers are set aside for good, by their names: a layer is of the test half if the first byte of the SHA-256
of ``model/layer``, such as ``transformer/body_decoder_layer_0_ffn_conv1_fully_connected``, is even. All of its matrices
are, whatever the way of pruning and the sparsity. `benchmarks.make_seeds` leaves them out by the fingerprints of their
patterns, which this command writes to ``dlmc_test_half.json``; matrices that it already holds and that are not in the
folder stay.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path, PurePosixPath

import click

from sparsegen.bench.suites.collection import find_matrices
from sparsegen.matrix.load import load_matrix

FILE = Path(__file__).with_name("dlmc_test_half.json")


def is_for_testing(name: str) -> bool:
    """True if a matrix is of the test half.

    Args:
        name: its path in the collection, model first, without the suffix: ``model/pruning/sparsity/layer``.
    """
    path = PurePosixPath(name)
    layer = f"{path.parts[0]}/{path.name}"
    return hashlib.sha256(layer.encode()).digest()[0] % 2 == 0


@cache
def test_half() -> dict[str, str]:
    """The fingerprints of the test half's patterns, by the matrices' names."""
    found: dict[str, str] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path))
def main(data: Path) -> None:
    found = dict(test_half()) if FILE.exists() else {}
    names = 0
    for file in find_matrices(data):
        name = file.relative_to(data).as_posix().removesuffix(".gz").removesuffix(".smtx")
        names += 1
        if is_for_testing(name):
            found[name] = load_matrix(file).fingerprint()
    FILE.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")
    click.echo(f"{names} matrices seen; {len(found)} of the test half in {FILE.name}")


if __name__ == "__main__":
    main()
