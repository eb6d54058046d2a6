"""The packaged suites, and suites made of a folder of matrix files."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.study import read_document
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import Blocks, EqualRows, PowerLaw, SlidingWindow
from sparsegen.bench.results.results import RowKey
from sparsegen.bench.suites import Suite, describe_suite, load_suite, suite_names
from sparsegen.bench.suites.collection import read_batch_sizes
from sparsegen.bench.suites.listed import listed_cases
from sparsegen.errors import MatrixError, SuiteError
from sparsegen.operators import (
    DType,
    Epilogue,
    Layout,
    SddmmProblem,
    SoftmaxBackwardProblem,
    SparseAttentionProblem,
    SpmmProblem,
)
from sparsegen.tuning_db.json_reader import parse_json

ROOT = Path(__file__).parents[2]
LISTED = [name for name in suite_names() if not describe_suite(name).needs_data]
COUNTS = {
    "attention": 6,
    "attention-blocks": 10,
    "mobilenet": 27,
    "spdnn": 15,
    "spdnn-float32": 6,
    "uneven": 4,
    "softmax": 10,
    "mixed": 48,
    "bfloat16": 6,
    "block": 24,
    "convolution": 190,
    "depthwise": 27,
    "dlmc-like": 24,
    "gnn": 6,
    "llm": 48,
    "llm-uneven": 32,
    "imbalance": 11,
    "lstm-crossover": 19,
    "recurrent": 72,
    "recurrent-gradients": 72,
    "rnn": 12,
    "sddmm": 14,
    "sparsedrop": 146,
    "sparsedrop-fp8": 12,
    "spmv": 16,
    "square": 24,
    "submanifold": 10,
    "transformer": 24,
    "uniform": 6,
    "shared-rows": 5,
    "uniform-batch": 8,
    "uniform-figures": 52,
    "uniform-networks": 24,
    "uniform-shapes": 10,
    "uniform-sparsity": 14,
}


# --- packaged lists ----------------------------------------------------------------------------------------


def test_all_suites_are_there() -> None:
    assert set(suite_names()) == {*COUNTS, "dlmc", "dlmc-gradients", "dlmc-training"}
    assert {name: len(load_suite(name).cases) for name in LISTED} == COUNTS


@pytest.mark.parametrize("name", LISTED)
def test_cases_are_sound(name: str) -> None:
    suite = load_suite(name)
    assert suite == describe_suite(name)
    assert suite.description and "\n" not in suite.description
    assert suite.sources and all(suite.sources)
    assert len({case.name for case in suite.cases}) == len(suite.cases)
    for case in suite.cases:
        assert case.suite == name
        assert Case.from_dict(json.loads(json.dumps(case.to_dict()))) == case
        if case.problem.has_pattern and math.prod(case.problem.matrix_shape) <= 2**18:
            assert case.matrix().nnz > 0


def test_rows_count_dtypes() -> None:
    assert load_suite("rnn").rows == 24
    assert load_suite("llm").rows == 48


def by_name(suite: Suite) -> dict[str, Case]:
    return {case.name: case for case in suite.cases}


def test_the_lists_are_those_of_the_published_peers() -> None:
    """benchmarks/peers_h100.json.xz holds what peers took on them."""
    peers = read_document(ROOT / "benchmarks" / "peers_h100.json.xz")["rows"]
    for name in {peer["suite"] for peer in peers}:
        wanted = {peer["case"] for peer in peers if peer["suite"] == name}
        assert {case.name for case in load_suite(name).cases} == wanted


def test_names_and_kinds() -> None:
    block = by_name(load_suite("block"))["4096x4096x4096 .20 b128"]
    assert block.pattern == Blocks(4096, 4096, 0.2, 128) and block.dtypes == (DType.FLOAT16,)
    uniform = by_name(load_suite("uniform-sparsity"))["128x128x128 .05"]
    assert uniform.pattern == EqualRows(128, 128, 0.05)
    assert uniform.problem == SpmmProblem(128, 128, 128, DType.FLOAT16, Layout.COLUMN)
    sddmm = by_name(load_suite("sddmm"))["8192x2048x128 .95"]
    assert sddmm.problem == SddmmProblem(8192, 2048, 128)
    softmax = by_name(load_suite("softmax"))["12288x12288 gradient, sliding 512"]
    assert softmax.problem == SoftmaxBackwardProblem(12288, 12288)
    assert softmax.pattern == SlidingWindow(12288, 12288, 512, 4)
    attention = by_name(load_suite("attention"))["12288x12288x128 batch=8 band 256"]
    assert attention.problem == SparseAttentionProblem(12288, 12288, 128, DType.FLOAT16, batch=8)
    graph = by_name(load_suite("gnn"))["19717x19717x32 pubmed"]
    assert isinstance(graph.pattern, PowerLaw)
    assert graph.matrix().nnz == pytest.approx(88648, abs=10)


@pytest.mark.parametrize(("name", "near"), [("rrn", "rnn"), ("DLMC", "dlmc"), ("sddm", "sddmm")])
def test_unknown_suites(name: str, near: str) -> None:
    message = (
        rf"unknown suite '{name}' \(did you mean '{near}'\?\); there are attention, .*, uniform-sparsity$"
    )
    with pytest.raises(SuiteError, match=message):
        load_suite(name)


def test_the_documentation_lists_them() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    table = {
        name: int(cases) for name, cases in re.findall(r"^\| `([a-z0-9-]+)` \| (\d+) \|", text, re.MULTILINE)
    }
    assert table == COUNTS


@pytest.mark.parametrize("name", ["", "../rnn", "rnn.json", "__init__"])
def test_names_are_no_paths(name: str) -> None:
    with pytest.raises(SuiteError, match="unknown suite"):
        describe_suite(name)


GROUP = {
    "source": "a test",
    "operator": "spmm",
    "dtypes": ["float32"],
    "pattern": "independent",
    "fixed": {"layout": "row"},
    "columns": ["m", "k", "n", "sparsity"],
    "cases": [[4, 5, 6, 0.5]],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"operator": "spgemm"}, r"\[0\]\.operator"),
        ({"dtypes": ["float8"]}, r"dtypes\[0\]"),
        (
            {"fixed": {"layout": "diagonal"}},
            r"mine.json: .*cases\[0\]: layout = 'diagonal' is none of row, column",
        ),
        (
            {"operator": "sparse_softmax"},
            r"mine.json: .*cases\[0\]: a pattern 'independent' with wrong fields",
        ),
        ({"columns": ["m", "k", "sparsity"], "cases": [[4, 5, 0.5]]}, r"cases\[0\]: spmm needs n"),
        ({"columns": ["m", "n", "sparsity"], "cases": [[4, 5, 0.5]]}, r"expected whole numbers for m and k"),
        ({"layout": "row"}, "no member 'layout'"),
        ({"pattern": "striped"}, "pattern"),
        ({"cases": [[4, 5, 6]]}, r"cases\[0\]: expected 4 values \(m, k, n, sparsity\)"),
        ({"cases": [[4, 5, 6, 0.5], [4, 5, 6, 0.5]]}, "twice"),
        ({"times": [1.0]}, "no member 'times'"),
    ],
)
def test_malformed_lists(changes: dict[str, object], message: str) -> None:
    groups = parse_json(json.dumps([GROUP | changes]), "mine.json", SuiteError)
    with pytest.raises(SuiteError, match=message):
        list(listed_cases("mine", groups))


def test_cases_may_vary_in_any_field_of_their_problem() -> None:
    varied = {
        "fixed": {"layout": "column"},
        "columns": ["m", "k", "n", "sparsity", "batch", "epilogue"],
        "cases": [[4, 5, 6, 0.5, 1, "none"], [4, 5, 6, 0.5, 2, "bias"]],
    }
    groups = parse_json(json.dumps([GROUP | varied]), "mine.json", SuiteError)
    plain, several = listed_cases("mine", groups)
    assert (plain.name, several.name) == ("4x5x6 .50", "4x5x6 .50 epilogue=bias batch=2")
    assert several.problem == SpmmProblem(
        4, 5, 6, layout=Layout.COLUMN, epilogue=Epilogue.BIAS, batch=2
    )  # fmt: skip


# --- folders of matrix files -------------------------------------------------------------------------------


def write_smtx(path: Path, text: str = "2, 3, 2\n0 1 2\n0 2\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """A folder laid out as DLMC's, with one matrix of each model."""
    data = tmp_path / "dlmc"
    write_smtx(data / "rn50" / "random_pruning" / "0.5" / "block_1.smtx.gz")
    write_smtx(data / "transformer" / "random_pruning" / "0.5" / "ffn.smtx")
    (data / "rn50_batchsizes.txt").write_text("block_1,49\nblock_2,3136\n")
    return data


def test_resnet_has_its_n_and_the_transformer_four(collection: Path) -> None:
    suite = load_suite("dlmc", collection)
    assert [(case.name, case.problem.sizes["n"]) for case in suite.cases] == [
        ("rn50/random_pruning/0.5/block_1 n=49", 49),
        *((f"transformer/random_pruning/0.5/ffn n={n}", n) for n in (64, 256, 512, 2048)),
    ]
    assert all(case.matrix().shape == case.problem.matrix_shape == (2, 3) for case in suite.cases)
    assert suite.needs_data and suite.rows == 10


def test_training_has_more_images(collection: Path) -> None:
    sizes = {case.name: case.problem.sizes["n"] for case in load_suite("dlmc-training", collection).cases}
    assert sizes == {
        "rn50/random_pruning/0.5/block_1 n=1568": 32 * 49,
        "transformer/random_pruning/0.5/ffn n=2048": 2048,
    }


def test_gradients_are_sampled_products(collection: Path) -> None:
    cases = load_suite("dlmc-gradients", collection).cases
    problems = [(2, 3, k) for k in (49, 256, 2048)]
    assert [case.problem for case in cases] == [SddmmProblem(*sizes) for sizes in problems]
    assert [case.name.rpartition(" ")[2] for case in cases] == [f"k={k}" for *_, k in problems]
    assert all(case.matrix().shape == case.problem.matrix_shape == (2, 3) for case in cases)


def test_the_folder_of_one_model_is_enough(collection: Path) -> None:
    (case,) = load_suite("dlmc", collection / "rn50").cases
    assert (case.name, case.problem.sizes["n"]) == ("random_pruning/0.5/block_1 n=49", 49)
    assert len(load_suite("dlmc", collection / "transformer").cases) == 4


def test_any_other_folder(tmp_path: Path) -> None:
    write_smtx(tmp_path / "mine" / "a.smtx")
    write_smtx(tmp_path / "mine" / "a.smtx.gz")  # the same matrix, compressed
    (tmp_path / "mine" / "notes.smtx.txt").write_text("none")
    assert {case.name for case in load_suite("dlmc", tmp_path).cases} == {
        f"mine/a n={n}" for n in (64, 256, 512, 2048)
    }


def test_without_data() -> None:
    assert describe_suite("dlmc").cases == ()
    with pytest.raises(SuiteError, match="--data DIR"):
        load_suite("dlmc")


def unknown_layer(data: Path) -> None:
    (data / "rn50_batchsizes.txt").write_text("block_2,49\n")


def no_list(data: Path) -> None:
    (data / "rn50_batchsizes.txt").unlink()


def no_matrices(data: Path) -> None:
    for path in data.rglob("*.smtx*"):
        path.unlink()


def no_folder(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def a_file(data: Path) -> None:
    no_folder(data)
    data.write_text("")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (unknown_layer, r"rn50_batchsizes\.txt.*block_1"),
        (no_list, r"need rn50_batchsizes\.txt"),
        (no_matrices, r"no \.smtx or \.smtx\.gz file"),
        (no_folder, "does not exist"),
        (a_file, "is no folder"),
    ],
)
def test_unfit_folders(collection: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(collection)
    with pytest.raises(SuiteError, match=message):
        load_suite("dlmc", collection)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,1\nb\n", r"sizes\.txt, line 2: expected 'LAYER,N'.*'b'"),
        ("a,1\n\nb,-3\n", "line 3"),
        ("a,0\n", "line 1"),
        ("a,3000000000\n", "line 1"),
        ("a,٣\n", "line 1"),
        ("a,1,2\n", "line 1"),
        ("a,1\na,2\n", "line 2: the layer 'a' stands there a second time"),
    ],
)
def test_malformed_batch_sizes(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sizes.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SuiteError, match=message):
        read_batch_sizes(path)


def test_batch_sizes_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="cannot be read"):
        read_batch_sizes(tmp_path / "none.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SuiteError, match="no text"):
        read_batch_sizes(tmp_path / "binary.txt")
    (tmp_path / "spaces.txt").write_text(" a , 12\r\n\n")
    assert read_batch_sizes(tmp_path / "spaces.txt") == {"a": 12}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.smtx", b"2, 3\n", "line 1: expected 'rows, columns, nonzeros'"),
        ("a.smtx", b"2, -3, 0\n", "line 1"),
        ("a.smtx", b"", "empty"),
        ("a.smtx.gz", b"2, 3, 2\n", "not a sound gzip file"),
        ("a.smtx.gz", gzip.compress(b"2, 3, 2\n0 1 2\n0 2\n", mtime=0)[:12], "truncated"),
        ("a.smtx", gzip.compress(b"2, 3, 2\n", mtime=0), r"gzip-compressed \(\.gz\)"),
    ],
)
def test_files_with_a_malformed_first_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MatrixError, match=message) as caught:
        load_suite("dlmc", tmp_path)
    assert caught.value.source is not None and name in caught.value.source


def test_a_matrix_that_changed_since(collection: Path) -> None:
    case = load_suite("dlmc", collection / "transformer").cases[0]
    write_smtx(collection / "transformer" / "random_pruning" / "0.5" / "ffn.smtx", "2, 4, 1\n0 1 1\n3\n")
    with pytest.raises(MatrixError, match="2 x 4, the case says 2 x 3"):
        case.matrix()


@pytest.mark.parametrize("name", LISTED)
def test_every_row_of_a_suite_has_a_key_of_its_own(name: str) -> None:
    keys = [
        RowKey.of(c.suite, c.name, c.in_dtype(dtype)) for c in load_suite(name).cases for dtype in c.dtypes
    ]
    assert len(set(keys)) == len(set(map(str, keys))) == len(keys)
