"""Files of networks, images and categories: round trips, and what damage is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from sparsegen.errors import MatrixError, OutputError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.networks.files.challenge_files import (
    layer_file,
    read_categories,
    read_challenge,
    read_images,
    read_layer,
    write_categories,
    write_challenge,
)
from sparsegen.networks.files.network_file import MOST_LAYERS, load_network, save_network
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet


def same(one: Network, other: Network) -> bool:
    return (
        one.clip == other.clip
        and all((a == b).all() for a, b in zip(one.biases, other.biases, strict=True))
        and all(
            (a.to_scipy() != b.to_scipy()).nnz == 0 and a.shape == b.shape
            for a, b in zip(one.layers, other.layers, strict=True)
        )
    )


def test_the_challenges_files_come_back(tmp_path: Path) -> None:
    network = radixnet(64, 4, seed=1)
    write_challenge(network, tmp_path)
    assert same(read_challenge(tmp_path), network)
    assert len(read_challenge(tmp_path, layers=2).layers) == 2
    first = layer_file(tmp_path, 64, 1).read_text().splitlines()
    assert len(first) == 64 * 32 and first[0].split() == ["1", "1", "0.0625"]


def test_a_file_holds_any_network(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    layers = [rng.standard_normal((9, 5)), rng.standard_normal((3, 9)) * (rng.random((3, 9)) < 0.5)]
    network = Network.of(layers, [rng.standard_normal(9), -0.5], 7.0)
    save_network(network, tmp_path / "net.npz")
    assert same(load_network(tmp_path / "net.npz"), network)
    challenge = radixnet(1024, 6)
    save_network(challenge, tmp_path / "challenge.npz")
    assert same(load_network(tmp_path / "challenge.npz"), challenge)
    assert (tmp_path / "challenge.npz").stat().st_size < 2.3 * challenge.edges


def test_images_and_categories_come_back(tmp_path: Path) -> None:
    images = stroke_images(7, 64)
    ones = np.argwhere(images) + 1  # pixels that are on, both numbered from 1
    (tmp_path / "images.tsv").write_text("".join(f"{image}\t{pixel}\t1\n" for image, pixel in ones))
    np.testing.assert_array_equal(read_images(tmp_path / "images.tsv", 64, count=7), images)
    write_categories(np.array([5, 0, 3]), tmp_path / "live.tsv")
    assert (tmp_path / "live.tsv").read_text() == "1\n4\n6\n"
    np.testing.assert_array_equal(read_categories(tmp_path / "live.tsv", 6), [0, 3, 5])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1\t2\t0.5", "cut off"),
        ("1\t2\t0.5\n3\t4\n", "line 2"),
        ("1\t2\t0.5\n3\tx\t1\n", "line 2"),
        ("1\t2\t0.5\n0\t2\t1\n", "0 is no whole number from 1 to 64"),
        ("1\t65\t0.5\n", "65 is no whole number"),
        ("1\t2\tnan\n", "finite"),
        ("1\t2\t1\n1\t2\t1\n", "twice"),
    ],
)
def test_damaged_layers_are_told(tmp_path: Path, text: str, told: str) -> None:
    file = layer_file(tmp_path, 64, 1)
    file.write_text(text)
    with pytest.raises(MatrixError, match=told):
        read_layer(file, 64)


def test_missing_layers_are_told(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="expected layers"):
        read_challenge(tmp_path)
    write_challenge(radixnet(64, 3), tmp_path)
    layer_file(tmp_path, 64, 2).unlink()
    for layers in (None, 3):
        with pytest.raises(MatrixError, match="layer 2 of 3 is missing"):
            read_challenge(tmp_path, layers=layers)
    write_challenge(radixnet(32, 1), tmp_path)
    with pytest.raises(MatrixError, match="found widths 32, 64"):
        read_challenge(tmp_path)


def test_files_are_named_by_text_too_and_places_that_take_none_are_told(tmp_path: Path) -> None:
    save_network(radixnet(64, 2), str(tmp_path / "net.npz"))
    assert same(load_network(str(tmp_path / "net.npz")), radixnet(64, 2))
    with pytest.raises(OutputError, match="cannot be written: Is a directory"):
        save_network(radixnet(64, 2), tmp_path)
    with pytest.raises(OutputError, match="cannot be written: File exists"):
        write_challenge(radixnet(64, 2), tmp_path / "net.npz")
    with pytest.raises(OutputError, match="cannot be written"):
        write_categories(np.arange(3), tmp_path)


def test_a_layer_that_ends_with_a_line_too_early_is_told(tmp_path: Path) -> None:
    write_challenge(radixnet(64, 3), tmp_path)
    second = layer_file(tmp_path, 64, 2)
    second.write_text("".join(second.read_text().splitlines(keepends=True)[:-700]))
    with pytest.raises(
        MatrixError, match=r"n64-l2\.tsv: has 1348 weights, and every other layer 2048: .* cut off"
    ):
        read_challenge(tmp_path)
    second.write_text("")
    with pytest.raises(MatrixError, match="has no weights"):
        read_challenge(tmp_path)


def test_a_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    file = tmp_path / "net.npz"
    save_network(radixnet(64, 2), file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(MatrixError, match=r"net.npz"):
        load_network(file)


def test_other_files_of_numpy_are_told(tmp_path: Path) -> None:
    file = tmp_path / "net.npz"
    save_network(radixnet(64, 2), file)
    with np.load(file) as stored:
        arrays = dict(stored)
    np.save(tmp_path / "one.npy", np.eye(4))
    with pytest.raises(MatrixError, match=r"no file of a network.*it holds one array"):
        load_network(tmp_path / "one.npy")
    np.savez(file, **arrays | {"version": np.ones(2)})
    with pytest.raises(MatrixError, match="is of version"):
        load_network(file)
    np.savez(file, **arrays | {"clip": np.ones(2)})
    with pytest.raises(MatrixError, match="is damaged"):
        load_network(file)


@pytest.mark.parametrize("name", ["version", "clip", "widths", "lengths", "columns", "values", "biases"])
def test_few_bytes_of_a_file_do_not_become_many(tmp_path: Path, name: str) -> None:
    file = tmp_path / "net.npz"
    save_network(radixnet(64, 2), file)
    with np.load(file) as stored:
        arrays = dict(stored)
    many = 2 * MOST_LAYERS if name == "widths" else 1 << 16
    np.savez_compressed(file, **arrays | {name: np.zeros(many, arrays[name].dtype)})
    with pytest.raises(MatrixError, match=rf"its {name} take \d+ bytes, of \d+ numbers at most"):
        load_network(file)


@pytest.mark.parametrize(
    "widths", [np.array("64"), np.array(["a", "b"]), np.array([64, -64]), np.array([np.nan] * 2)]
)
def test_widths_that_are_none_are_told(tmp_path: Path, widths: Any) -> None:
    file = tmp_path / "net.npz"
    save_network(radixnet(64, 2), file)
    with np.load(file) as stored:
        np.savez(file, **dict(stored) | {"widths": widths})
    with pytest.raises(MatrixError, match=r"net\.npz: "):
        load_network(file)


def test_another_archive_is_told_by_what_it_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", data=np.ones(2), indptr=np.ones(3))
    with pytest.raises(MatrixError, match=r"it has no version, widths.*; it holds data, indptr"):
        load_network(tmp_path / "other.npz")


def test_networks_beyond_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "net.npz"
    save_network(radixnet(64, 2), file)
    monkeypatch.setattr(
        MemoryBudget, "of_machine", lambda source: MemoryBudget(source, 1000, "which is little")
    )
    with pytest.raises(MatrixError, match="which is little"):
        load_network(file)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"nowhere\.npz: there is no such file$"):
        load_network(tmp_path / "nowhere.npz")


def test_networks_that_do_not_fit_are_refused() -> None:
    good = np.ones((4, 4))
    with pytest.raises(MatrixError, match="layer 1: it takes 3 neurons, but layer 0 has 4"):
        Network.of([good, np.ones((4, 3))], 0.0, 1.0)
    with pytest.raises(MatrixError, match="at least one layer"):
        Network.of([], 0.0, 1.0)
    for alone in (None, scipy.sparse.eye_array(4)):
        with pytest.raises(MatrixError, match="expected a list of matrices"):
            Network.of(alone, 0.0, 1.0)  # type: ignore[arg-type]
    with pytest.raises(MatrixError, match="expected one number or 4"):
        Network.of([good], [np.ones(3)], 1.0)
    with pytest.raises(MatrixError, match="biases must be finite"):
        Network.of([good], np.nan, 1.0)
    with pytest.raises(MatrixError):
        Network.of([np.full((4, 4), np.inf)], 0.0, 1.0)
