"""Weights in files: pruned as in memory, written whole or not at all, everything else as it was."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from pruning_reference import Array, as_matrix, network_weights

import sparsegen
from sparsegen.errors import MatrixError, OutputError, OutputExistsError, PruningError
from sparsegen.pruning.files.open import open_weights
from sparsegen.pruning.files.safetensors import SafetensorsFile
from sparsegen.pruning.plan import Stage, Step
from sparsegen.pruning.pruner import OutputFormat, compare_file, prune_file
from sparsegen.pruning.request import PatternName, PruneRequest

UNIFORM = PruneRequest.parse("uniform", 0.8)
BIAS = np.arange(10, dtype=np.float32)


def bfloat16(array: Array) -> Array:
    """The upper halves of float32, as they are stored."""
    return (array.view(np.uint32) >> 16).astype(np.uint16)


def save_safetensors(path: Path, tensors: dict[str, tuple[str, Array]], metadata: dict[str, str]) -> None:
    """A file of (type, raw elements) by name, the header padded with blanks as the library does."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (kind, raw) in tensors.items():
        content = raw.tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(raw.shape),
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    path = tmp_path / "weights.npz"
    np.savez(path, **network_weights(), **{"head.bias": BIAS})
    return path


@pytest.fixture
def safetensors(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    arrays = network_weights()
    tensors = {name: ("F32", array) for name, array in arrays.items()}
    tensors["mlp.up.weight"] = ("BF16", bfloat16(arrays["mlp.up.weight"]))
    tensors["head.bias"] = ("F32", BIAS)
    tensors["quantised"] = ("F8_E4M3", np.arange(12, dtype=np.uint8).reshape(3, 4))
    save_safetensors(path, tensors, {"format": "pt", "made by": "a test"})
    return path


@pytest.mark.parametrize("pattern", ["uniform", "unstructured"])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_npz_is_pruned_as_in_memory(npz: Path, scope: str, pattern: str) -> None:
    out = npz.with_name("out.npz")
    report = prune_file(npz, PruneRequest.parse(pattern, 0.8, scope=scope), output=out)
    weights = {**network_weights(), "head.bias": BIAS}
    expected = sparsegen.prune(weights, pattern=pattern, sparsity=0.8, scope=scope)
    with np.load(out) as written:
        assert written.files == list(weights)
        assert all(np.array_equal(written[name], expected.weights[name]) for name in weights)
    assert report.layers == expected.report.layers and report.copied == expected.report.copied


def test_the_same_weights_make_the_same_file(npz: Path) -> None:
    one, other = npz.with_name("one.npz"), npz.with_name("other.npz")
    for path in (one, other):
        prune_file(npz, UNIFORM, output=path)
    assert one.read_bytes() == other.read_bytes()


def test_members_that_are_no_arrays_of_numbers_are_copied(tmp_path: Path) -> None:
    path, out = tmp_path / "w.npz", tmp_path / "out.npz"
    np.savez_compressed(path, w=np.arange(1.0, 17).reshape(4, 4), objects=np.array([{"a": 1}], dtype=object))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README", "kept")
    report = prune_file(path, UNIFORM, output=out)
    assert {c.name: c.reason for c in report.copied} == {
        "objects": "elements of object",
        "README": "elements of bytes",
    }
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(out) as after:
        assert after.read("README") == b"kept" and after.read("objects.npy") == before.read("objects.npy")
        assert after.getinfo("w.npy").compress_type == zipfile.ZIP_DEFLATED


def test_npy(tmp_path: Path) -> None:
    path, out = tmp_path / "w.npy", tmp_path / "out.npy"
    array = np.asfortranarray(network_weights()["attention.qkv.weight"].astype(np.float16))
    np.save(path, array)
    report = prune_file(path, UNIFORM, output=out)
    written = np.load(out)
    assert written.dtype == np.float16 and written.flags.f_contiguous
    assert np.array_equal(written, sparsegen.prune(array, sparsity=0.8).weights)
    assert [layer.name for layer in report.layers] == ["w"]


def test_a_sparse_matrix_is_pruned_further(tmp_path: Path) -> None:
    path, out = tmp_path / "w.npz", tmp_path / "out.npz"
    matrix = scipy.sparse.random(40, 60, 0.3, format="csc", random_state=0, dtype=np.float64)
    scipy.sparse.save_npz(path, matrix)
    report = prune_file(path, PruneRequest.parse("unstructured", 0.9), output=out)
    written = scipy.sparse.load_npz(out)
    assert written.format == "csr" and written.dtype == np.float64 and written.nnz == 240
    expected = sparsegen.prune(matrix.toarray(), pattern="unstructured", sparsity=0.9)
    assert np.array_equal(written.toarray(), expected.weights)
    assert sparsegen.load_matrix(out).fingerprint() == report.layers[0].fingerprint


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_safetensors_keep_everything_else(safetensors: Path, scope: str) -> None:
    out = safetensors.with_name("out.safetensors")
    report = prune_file(safetensors, PruneRequest.parse("uniform", 0.8, scope=scope), output=out)
    weights = network_weights()
    rounded = bfloat16(weights["mlp.up.weight"]).astype(np.uint32) << 16
    weights["mlp.up.weight"] = rounded.view(np.float32)
    expected = sparsegen.prune(weights, sparsity=0.8, scope=scope)
    before, after = open_weights(safetensors), open_weights(out)
    assert before.specs == after.specs and safetensors.stat().st_size == out.stat().st_size
    for name, array in expected.weights.items():
        assert np.array_equal(after.read(name), array), name
    assert {c.name: c.reason for c in report.copied} == {
        "head.bias": "1-D",
        "quantised": "elements of F8_E4M3",
    }
    head = int.from_bytes(safetensors.read_bytes()[:8], "little") + 8
    assert out.read_bytes()[:head] == safetensors.read_bytes()[:head], "header and metadata"
    assert BIAS.tobytes() in out.read_bytes() and out.read_bytes().endswith(bytes(range(12)))


def test_how_often_tensors_are_read(safetensors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the mask; before that with a global scope once for norms, or three times for single weights."""
    reads: list[str] = []
    honest = SafetensorsFile.read
    monkeypatch.setattr(SafetensorsFile, "read", lambda self, name: reads.append(name) or honest(self, name))
    prune_file(safetensors, PruneRequest.parse("uniform", 0.8, scope="layer"))
    assert len(reads) == len(network_weights())
    reads.clear()
    steps: list[Step] = []
    prune_file(safetensors, UNIFORM, progress=steps.append)
    assert len(reads) == len(steps) == 2 * len(network_weights())
    assert [s.stage for s in steps] == [Stage.RANKING] * 7 + [Stage.PRUNING] * 7
    assert [s.number for s in steps] == [*range(1, 8), *range(1, 8)]
    reads.clear()
    prune_file(safetensors, PruneRequest.parse("unstructured", 0.8))
    assert len(reads) == 4 * len(network_weights())


def test_csr_files_are_what_tune_reads(safetensors: Path) -> None:
    folder = safetensors.with_name("layers")
    report = prune_file(safetensors, UNIFORM, output=folder, output_format=OutputFormat.CSR_NPZ)
    assert sorted(p.name for p in folder.iterdir()) == sorted(f"{n}.npz" for n in network_weights())
    for layer in report.layers:
        matrix = sparsegen.load_matrix(folder / f"{layer.name}.npz")
        assert matrix.fingerprint() == layer.fingerprint
        assert matrix.shape == as_matrix(network_weights()[layer.name]).shape


def test_names_that_are_no_file_names(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("../up", "enc/0/w"):
            stream = io.BytesIO()
            np.save(stream, np.ones((4, 4)))
            archive.writestr(f"{name}.npy", stream.getvalue())
    prune_file(path, UNIFORM, output=tmp_path / "out", output_format=OutputFormat.CSR_NPZ)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [".._up.npz", "enc_0_w.npz"]
    np.savez(path, **{"a.b": np.ones((4, 4)), "A.b": np.ones((4, 4))})
    with pytest.raises(PruningError, match=r"'a\.b' and 'A\.b'"):
        prune_file(path, UNIFORM, output=tmp_path / "other", output_format=OutputFormat.CSR_NPZ)


# --- nothing is lost ---


@pytest.mark.parametrize("output_format", OutputFormat)
def test_nothing_is_overwritten_unless_asked(npz: Path, output_format: OutputFormat) -> None:
    out = npz.with_name("out.npz" if output_format is OutputFormat.SAME else "out")
    prune_file(npz, UNIFORM, output=out, output_format=output_format)
    first = {p: p.read_bytes() for p in (out, *out.glob("*")) if p.is_file()}
    denser = PruneRequest.parse("uniform", 0.5)
    with pytest.raises(OutputExistsError, match="--force"):
        prune_file(npz, denser, output=out, output_format=output_format)
    assert all(p.read_bytes() == content for p, content in first.items())
    if out.is_dir():
        (out / "mine.txt").write_text("stays")
    prune_file(npz, denser, output=out, output_format=output_format, force=True)
    assert all(p.read_bytes() != content for p, content in first.items())
    assert not out.is_dir() or (out / "mine.txt").read_text() == "stays"


def test_the_input_can_be_its_own_output(safetensors: Path) -> None:
    with pytest.raises(OutputExistsError):
        prune_file(safetensors, UNIFORM, output=safetensors)
    report = prune_file(safetensors, UNIFORM, output=safetensors, force=True)
    again = prune_file(safetensors, UNIFORM)
    assert again.kept == report.kept and again.kept_energy == 1


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("output_format", OutputFormat)
def test_a_failure_leaves_nothing_behind(
    npz: Path, safetensors: Path, suffix: str, output_format: OutputFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt in the middle of the last layer."""
    path = npz if suffix == ".npz" else safetensors
    out = path.parent / "new" / f"out{suffix}"
    before = sorted(path.parent.iterdir())

    def interrupt(step: Step) -> None:
        if step.stage is Stage.PRUNING and step.number == step.layers:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune_file(path, UNIFORM, output=out, output_format=output_format, progress=interrupt)
    assert sorted(path.parent.iterdir()) == before


def test_outputs_that_cannot_be(npz: Path) -> None:
    with pytest.raises(PruningError, match="input; name it so"):
        prune_file(npz, UNIFORM, output=npz.with_name("out.safetensors"))
    for output_format in OutputFormat:
        with pytest.raises(OutputError, match="cannot be written"):
            prune_file(npz, UNIFORM, output=npz / "none" / "out.npz", output_format=output_format)
    (npz.parent / "folder.npz").mkdir()
    with pytest.raises(OutputExistsError, match="a folder"):
        prune_file(npz, UNIFORM, output=npz.parent / "folder.npz", force=True)
    with pytest.raises(OutputExistsError, match="no folder"):
        prune_file(npz, UNIFORM, output=npz, output_format=OutputFormat.CSR_NPZ, force=True)


# --- bad input ---


def test_files_that_cannot_be_read(tmp_path: Path, npz: Path, safetensors: Path) -> None:
    with pytest.raises(PruningError, match=r"\.npz, \.npy, \.safetensors"):
        prune_file(tmp_path / "w.mtx", UNIFORM)
    for name in ("w.npz", "w.npy", "w.safetensors"):
        with pytest.raises(MatrixError, match="no such file"):
            prune_file(tmp_path / name, UNIFORM)
        (tmp_path / name).write_bytes(b"not what the suffix says")
        with pytest.raises(MatrixError, match=name):
            prune_file(tmp_path / name, UNIFORM)
    for path in (npz, safetensors):
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(MatrixError, match=path.name):
            prune_file(path, UNIFORM, output=path.with_name(f"out{path.suffix}"))
    assert not list(tmp_path.glob("*out*"))


def test_nan_is_refused_with_its_place_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    raw = bfloat16(np.ones((4, 4), np.float32))
    raw[2, 1] = 0x7FC0
    save_safetensors(path, {"a": ("BF16", bfloat16(np.ones((4, 4), np.float32))), "b": ("BF16", raw)}, {})
    with pytest.raises(MatrixError, match=r"w\.safetensors, tensor 'b', index \(2, 1\)"):
        prune_file(path, PruneRequest.parse("nm"), output=tmp_path / "out.safetensors")
    assert list(tmp_path.iterdir()) == [path]
    sparse = tmp_path / "s.npz"
    scipy.sparse.save_npz(sparse, scipy.sparse.csr_array(np.array([[0, np.inf], [1, 0]])))
    with pytest.raises(MatrixError, match=r"tensor 's', index \(0, 1\)"):
        prune_file(sparse, UNIFORM)


def test_a_sparse_matrix_too_large_to_be_dense(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    scipy.sparse.save_npz(path, scipy.sparse.coo_array(([1.0], ([0], [0])), shape=(2**20, 2**20)))
    with pytest.raises(MatrixError, match="dense weights would take 8"):
        prune_file(path, UNIFORM)


def test_tensors_that_share_bytes(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    header = {
        name: {"dtype": "F32", "shape": [2, 2], "data_offsets": [begin, begin + 16]}
        for name, begin in (("a", 0), ("b", 8))
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(24))
    with pytest.raises(MatrixError, match="tensor 'b': its data begin within those of tensor 'a'"):
        prune_file(path, UNIFORM)


def test_empty_tensors_and_files_without_any(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_safetensors(
        path, {"e": ("F32", np.ones((0, 4), np.float32)), "w": ("F16", np.ones((2, 4), np.float16))}, {}
    )
    report = prune_file(path, UNIFORM, output=tmp_path / "out.safetensors")
    assert [layer.size for layer in report.layers] == [0, 8]
    save_safetensors(path, {}, {"format": "pt"})
    with pytest.raises(PruningError, match="nothing to prune: no tensors"):
        prune_file(path, UNIFORM)


# --- comparison ---


def test_all_patterns_side_by_side(npz: Path) -> None:
    half = compare_file(npz, 0.5, block=(4, 4))
    assert [r.request.pattern.describe() for r in half.reports] == [
        "uniform", "unstructured", "block 4x4", "blocked-uniform 4x4", "nm 2:4",
    ]  # fmt: skip
    by_name = {r.request.pattern.describe(): r for r in half.reports}
    assert by_name["unstructured"].kept_energy == max(r.kept_energy for r in half.reports)
    assert not half.left_out
    most = compare_file(npz, 0.9, scope="layer")
    assert len(most.reports) == 4 and most.left_out[0][0] is PatternName.NM
    assert "0.5 of the weights, not 0.9" in most.left_out[0][1]
    assert compare_file(npz, 0.9, nm=(1, 10)).reports[-1].request.pattern.describe() == "nm 1:10"


@pytest.mark.parametrize("shape", [[0, 10**30], [2**40, 2**40], [1] * 40])
def test_shapes_that_numpy_cannot_have(tmp_path: Path, shape: list[int]) -> None:
    text = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(MatrixError, match="tensor 'w'"):
        prune_file(path, UNIFORM)
