"""A sparse matrix as commands take it: one value, read once and only when it is needed."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sparsegen.cli.parts import matrix_options as module
from sparsegen.cli.parts.matrix_options import MatrixOptions, matrix_options


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "w.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 3 2\n1 1 0\n2 3 1\n")
    return path


def read(options: MatrixOptions) -> tuple[tuple[int, int], int]:
    assert options.reader is not None
    found = options.reader()
    return found.shape, found.nnz


def test_what_is_read(file: Path) -> None:
    assert read(MatrixOptions(file)) == ((2, 3), 2)
    assert read(MatrixOptions(file, drop_zeros=True)) == ((2, 3), 1)
    assert read(MatrixOptions(file, transpose=True)) == ((3, 2), 2)
    assert MatrixOptions(None, transpose=True).reader is None


def test_a_reader_reads_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = module.load_matrix, []

    def counted(*args: object, **options: object) -> object:
        calls.append(options)
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "load_matrix", counted)
    reader = MatrixOptions(file, None, 3, True, 1 << 20).reader
    assert reader is not None and not calls
    assert reader() is reader()
    assert calls == [
        {"tensor": None, "seed": 3, "drop_zeros": True, "memory_limit": 1 << 20, "transpose": False}
    ]


def test_a_command_gets_one_value(file: Path) -> None:
    received: list[MatrixOptions] = []

    @click.command()
    @matrix_options
    @click.option("--other", default=1)
    def command(matrix_file: MatrixOptions, other: int) -> None:
        received.append(matrix_file)

    words = ["--matrix", str(file), "--tensor", "t", "--seed", "7", "--drop-zeros", "--transpose"]
    assert CliRunner().invoke(command, [*words, "--memory-limit", "1GiB"]).exit_code == 0
    assert CliRunner().invoke(command, []).exit_code == 0
    assert received == [MatrixOptions(file, "t", 7, True, 1 << 30, True), MatrixOptions(None)]
