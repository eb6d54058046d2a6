"""Prepared operators on the emulator: right results, clear refusals, threads, new values."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import sparsegen
from sparsegen import api
from sparsegen.backends.emulator import device as emulator_device
from sparsegen.dispatch.named import named_choice
from sparsegen.errors import ConfigError, NoVariantError, OperandError
from sparsegen.kernels import families, families_of
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Layout, SparseOperator, SpmmProblem, TensorSpec
from sparsegen.plan.arrays import alignment_of, require_aligned, stream_handle
from sparsegen.tuning_db.records import Measurement, Outcome, Sample, Variant, Workload
from sparsegen.tuning_db.store import Store
from sparsegen.verify.bounds import worst_error

pytestmark = pytest.mark.usefixtures("own_database")
M, K, N = 37, 52, 24


@pytest.fixture(scope="module")
def pattern() -> Any:
    return scipy.sparse.random(M, K, 0.2, format="csr", random_state=3, dtype=np.float32)


def prepare(matrix: Any, n: int = N, **options: Any) -> SparseOperator:
    op = sparsegen.prepare(matrix, n=n, device="emulator", **options)
    assert isinstance(op, SparseOperator)
    return op


def inputs(dtype: str = "float32", layout: str = "row", n: int = N) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    shape = (K, n) if layout == "row" else (n, K)
    return rng.standard_normal(shape).astype(np.float16 if dtype == "float16" else np.float32)


def worst(op: SparseOperator, matrix: Any, c: Any, **operands: Any) -> float:
    dtype = op.problem.dtype
    stored = {name: dtype.to_storage(array) for name, array in operands.items()}
    return worst_error(op.problem.reference(sparsegen.as_csr(matrix), stored), dtype.to_storage(c))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["row", "column"])
def test_results_are_right(pattern: Any, dtype: str, layout: str) -> None:
    op = prepare(pattern, dtype=dtype, layout=layout)
    b = inputs(dtype, layout)
    c = op(b)
    assert c.dtype == b.dtype and worst(op, pattern, c, b=b) <= 1
    if dtype == "bfloat16":
        assert np.array_equal(c, DType.BFLOAT16.from_storage(DType.BFLOAT16.to_storage(c))), (
            "rounded to bfloat16"
        )


@pytest.mark.parametrize("epilogue", ["bias", "bias_relu", "bias_gelu"])
def test_a_bias_with_each_call_or_kept(pattern: Any, epilogue: str) -> None:
    bias = np.linspace(-3, 3, M, dtype=np.float32)
    op = prepare(pattern, epilogue=epilogue)
    b = inputs()
    assert worst(op, pattern, op(b, bias=bias), b=b, bias=bias) <= 1
    with pytest.raises(OperandError, match=rf"bias= of shape \({M},\)"):
        op(b)
    kept = prepare(pattern, epilogue=epilogue, bias=bias)
    assert worst(kept, pattern, kept(b), b=b, bias=bias) <= 1
    assert worst(kept, pattern, kept(b, bias=-bias), b=b, bias=-bias) <= 1


@pytest.mark.parametrize("layout", ["row", "column"])
def test_a_residual_comes_with_each_call(pattern: Any, layout: str) -> None:
    bias = np.linspace(-3, 3, M, dtype=np.float32)
    op = prepare(pattern, layout=layout, epilogue="bias_residual", bias=bias)
    b = inputs(layout=layout)
    shape = (M, N) if layout == "row" else (N, M)
    residual = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    c = op(b, residual=residual)
    assert worst(op, pattern, c, b=b, bias=bias, residual=residual) <= 1
    bare = prepare(pattern, layout=layout, epilogue="bias", bias=bias)(b)
    np.testing.assert_allclose(c - bare, residual, atol=1e-5)
    with pytest.raises(OperandError, match=rf"needs residual= of shape \({shape[0]}, {shape[1]}\)"):
        op(b)
    with pytest.raises(OperandError, match="residual: expected shape"):
        op(b, residual=residual.T.copy())


def test_out_is_written_and_returned(pattern: Any) -> None:
    op, b = prepare(pattern), inputs()
    out = np.full((M, N), np.nan, np.float32)
    assert op(b, out) is out and worst(op, pattern, out, b=b) <= 1


def test_empty_matrices() -> None:
    for shape in ((0, 5), (5, 0), (4, 6)):
        op = prepare(scipy.sparse.csr_array(shape, dtype=np.float32), n=3)
        assert np.array_equal(op(np.ones((shape[1], 3), np.float32)), np.zeros((shape[0], 3)))
        op.update_values(np.zeros(0))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"b": np.zeros((K, N + 1), np.float32)}, rf"b: expected shape \({K}, {N}\), got \({K}, {N + 1}\)"),
    ({"b": np.zeros((K, N))}, "b: expected dtype float32, got float64"),
    ({"b": np.zeros((N, K), np.float32).T}, "contiguous"),
    ({"b": [[1.0]]}, "expected a NumPy, PyTorch or CuPy array, got builtins.list"),
    ({"out": np.zeros((M, N), np.float16)}, "c: expected dtype float32, got float16"),
    ({"out": np.zeros((M, 1), np.float32)}, r"c: expected shape"),
    ({"out": [1.0]}, "c: expected a numpy.ndarray, got list"),
    ({"bias": np.zeros(M, np.float32)}, "epilogue=none"),
    (
        {"residual": np.zeros((M, N), np.float32)},
        "residual= was given, but the operator was prepared for spmm m=37 k=52 n=24 float32 row epilogue=none",
    ),
    ({"stream": 7}, "no meaning for NumPy"),
]


@pytest.mark.parametrize(("wrong", "words"), REFUSED, ids=[words[:24] for _, words in REFUSED])
def test_wrong_operands_are_refused(pattern: Any, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(OperandError, match=words):
        prepare(pattern)(**({"b": inputs()} | wrong))


def test_an_array_of_another_library_is_refused_with_advice(pattern: Any) -> None:
    class Theirs:
        def __dlpack__(self) -> None: ...

    with pytest.raises(
        OperandError, match=r"Theirs; numpy\.from_dlpack\(array\) is one over the same memory"
    ):
        prepare(pattern)(Theirs())


def test_a_read_only_out_is_refused(pattern: Any) -> None:
    out = np.zeros((M, N), np.float32)
    out.flags.writeable = False
    with pytest.raises(OperandError, match="writeable"):
        prepare(pattern)(inputs(), out)


def test_torch_tensors_need_a_gpu(pattern: Any) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(OperandError, match="takes NumPy arrays"):
        prepare(pattern)(torch.zeros(K, N))


def test_wrong_words_are_refused(pattern: Any) -> None:
    for option in ("dtype", "layout", "epilogue", "on_miss"):
        with pytest.raises(ConfigError, match=f"{option} = 'odd' is none of"):
            prepare(pattern, **{option: "odd"})
    with pytest.raises(ConfigError, match="n = 0"):
        prepare(pattern, n=0)
    with pytest.raises(OperandError, match="bias= was given"):
        prepare(pattern, bias=np.zeros(M))
    with pytest.raises(OperandError, match=r"bias: expected shape"):
        prepare(pattern, epilogue="bias", bias=np.zeros(M + 1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_new_values_on_the_same_pattern(pattern: Any, dtype: str) -> None:
    op, b = prepare(pattern, dtype=dtype), inputs(dtype)
    before = op(b)
    other = pattern.copy()
    other.data = np.random.default_rng(5).standard_normal(other.nnz).astype(np.float32)
    op.update_values(other.data)
    after = op(b)
    assert worst(op, other, after, b=b) <= 1 and not np.allclose(before, after)
    op.update_values(sparsegen.as_csr(pattern))
    assert np.array_equal(op(b), before)
    with pytest.raises(OperandError, match=r"values: expected shape"):
        op.update_values(other.data[:-1])


@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize("family", [None, *(f.name for f in families_of("spmm"))])
def test_the_transposed_product_and_its_values(pattern: Any, layout: str, family: str | None) -> None:
    dtype = "float16" if family in (None, "lane_stream_spmm") else "float32"
    if family and not families()[family].computes(SpmmProblem(K, M, N, DType(dtype), Layout(layout))):
        pytest.skip("computes products of the other layout alone")
    op = prepare(pattern, transpose=True, family=family, layout=layout, dtype=dtype)
    assert (op.problem.m, op.problem.k) == (K, M)
    rng = np.random.default_rng(0)
    b = rng.standard_normal((M, N) if layout == "row" else (N, M)).astype(dtype)
    assert worst(op, pattern.T.tocsr(), op(b), b=b) <= 1
    other = pattern.copy()
    other.data = rng.standard_normal(other.nnz).astype(np.float32)
    op.update_values(other.data)  # in the order of the matrix, not of its transpose
    assert worst(op, other.T.tocsr(), op(b), b=b) <= 1


def test_what_is_known_of_a_transposed_product(pattern: Any, own_database: Path) -> None:
    record(pattern.T.tocsr(), 50.0, own_database, tile_n=16, threads_per_row=4, rows_per_block=8)
    assert prepare(pattern, transpose=True).choice.how is sparsegen.How.EXACT
    found = sparsegen.lookup(pattern, n=N, transpose=True, device="emulator")
    assert found.how is sparsegen.How.EXACT and found.problem.sizes == {"m": K, "k": M, "n": N}
    assert prepare(pattern).choice.how is not sparsegen.How.EXACT
    with pytest.raises(ConfigError, match="sddmm takes no transpose"):
        sparsegen.lookup(pattern, operator="sddmm", k=4, transpose=True, device="emulator")


def test_an_empty_transposed_product() -> None:
    for shape in ((0, 5), (5, 0), (4, 6)):
        op = prepare(scipy.sparse.csr_array(shape, dtype=np.float32), n=3, transpose=True)
        assert np.array_equal(op(np.ones((shape[0], 3), np.float32)), np.zeros((shape[1], 3)))
        op.update_values(np.zeros(0))


def test_new_values_come_between_two_calls() -> None:
    """Beside calls in other threads: each has all the old values or all the new ones."""
    pattern = scipy.sparse.random_array((400, 300), density=0.3, format="csr", rng=1, dtype=np.float32)
    pattern.data[:] = 1
    op, b = prepare(pattern, n=8), np.ones((300, 8), np.float32)
    lengths = np.diff(pattern.indptr)[:, None] * np.ones(8)
    stop = threading.Event()
    factors: list[float] = []

    def call() -> None:
        while not stop.is_set():
            c = op(b)
            factor = c.sum() / lengths.sum()
            factors.append(factor if np.array_equal(c, factor * lengths) else np.nan)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        while len(factors) < 200:
            for factor in (2.0, 1.0):
                op.update_values(np.full(pattern.nnz, factor, np.float32))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(factors) <= {1.0, 2.0}, f"{sum(map(np.isnan, factors))} of {len(factors)} are mixed"


@pytest.mark.parametrize("transpose", [False, True])
def test_a_matrix_of_another_pattern_has_no_values_for_this_one(
    pattern: Any, transpose: bool, tmp_path: Path
) -> None:
    """Equally many nonzeros are not enough; nor are the transpose's, for a matrix that is stored transposed."""
    op = prepare(pattern, transpose=transpose)
    moved = pattern.copy()
    moved.indices = ((moved.indices + 1) % K).astype(np.int32)
    moved.sort_indices()
    for other in (moved, pattern.T.tocsr()):
        assert other.nnz == pattern.nnz
        with pytest.raises(OperandError, match="another pattern"):
            op.update_values(sparsegen.as_csr(other))
    op.update_values(sparsegen.as_csr(2 * pattern))
    sparsegen.save_operator(op, tmp_path / "op.npz")
    loaded = sparsegen.load_operator(tmp_path / "op.npz", device="emulator")
    with pytest.raises(OperandError, match="another pattern"):
        loaded.update_values(sparsegen.as_csr(moved))
    loaded.update_values(sparsegen.as_csr(pattern))


def test_threads_share_an_operator(pattern: Any) -> None:
    op = prepare(pattern)
    columns = [inputs() * (i + 1) for i in range(4)]
    expected = [op(b) for b in columns]
    got: list[Any] = [None] * 4

    def run(i: int) -> None:
        for _ in range(10):
            got[i] = op(columns[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(g, e) for g, e in zip(got, expected, strict=True))


def test_it_explains_itself(pattern: Any) -> None:
    op = prepare(pattern)
    assert "default" in op.explain() and "kernel.cu" in op.explain()
    assert "__global__" in op.source
    assert op.variant.family in op.explain() and len(op.variant.source_digest) == 64


def record(matrix: Any, microseconds: float, at: Path, **values: Any) -> None:
    """Records a time as the tuner would."""
    csr = sparsegen.as_csr(matrix)
    problem = SpmmProblem.of(csr.shape, n=N)
    choice = named_choice(problem, Features.of(csr), emulator_device(), "csr_spmm", values)
    workload = Workload(problem, csr.fingerprint(), Features.of(csr))
    variant = Variant(choice.config, "ab" * 32)
    sample = Sample(microseconds, microseconds, microseconds, 5)
    with Store.open(at) as store:
        store.add_measurement(Measurement(workload, emulator_device(), variant, Outcome.OK, sample))


def test_what_was_tuned_runs(pattern: Any, own_database: Path) -> None:
    assert prepare(pattern).choice.how is sparsegen.How.DEFAULT
    record(pattern, 50.0, own_database, tile_n=16, threads_per_row=4, rows_per_block=8)
    op = prepare(pattern)
    assert (op.choice.how, op.choice.config.tile_n) == (sparsegen.How.EXACT, 16)
    assert worst(op, pattern, op(inputs()), b=inputs()) <= 1
    record(pattern, 20.0, own_database, tile_n=32, threads_per_row=8, rows_per_block=4)
    assert prepare(pattern).choice.config.tile_n == 32, "another store's writes are seen"


def test_a_named_variant(pattern: Any) -> None:
    config = {"tile_n": 32, "threads_per_row": 8, "rows_per_block": 4, "row_order": "natural"}
    op = prepare(pattern, family="csr_spmm", config=config)
    assert op.choice.how is sparsegen.How.NAMED and op.choice.config.row_order == "natural"
    assert worst(op, pattern, op(inputs()), b=inputs()) <= 1
    with pytest.raises(ConfigError, match="cannot run with"):
        prepare(pattern, family="csr_spmm", config={"tile_n": 32, "threads_per_row": 32})
    with pytest.raises(ConfigError, match="needs family"):
        prepare(pattern, config=config)


def test_on_miss_error_and_words_of_dense(pattern: Any) -> None:
    with pytest.raises(NoVariantError, match="sparsegen tune"):
        prepare(pattern, on_miss="error")
    with pytest.raises(ConfigError, match="family= names a variant"):
        prepare(pattern, family="csr_spmm", dense="always")
    for option in ("dense", "l2"):
        with pytest.raises(ConfigError, match=option):
            prepare(pattern, **{option: "odd"})


def test_on_miss_tune_tunes_once(pattern: Any, own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def tune(matrix: Any, problem: SpmmProblem, **options: Any) -> None:
        calls.append(problem)
        record(pattern, 5.0, own_database, tile_n=16, threads_per_row=4, rows_per_block=8)

    monkeypatch.setattr(api, "tune", tune)
    for _ in range(2):
        assert prepare(pattern, on_miss="tune").choice.config.tile_n == 16
    assert calls == [SpmmProblem(M, K, N)]


def test_lookup_compiles_nothing(pattern: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegen.backends.toolchain", lambda device: pytest.fail("compiled"))
    assert sparsegen.lookup(pattern, n=N, device="emulator").how is sparsegen.How.DEFAULT


# --- small parts
# -----------------------------------------------------------------------------------------------


def test_streams_of_every_kind() -> None:
    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return (0, 11)

    class Torch:
        cuda_stream = 12

    class Cupy:
        ptr = 13

    assert [stream_handle(s) for s in (10, Protocol(), Torch(), Cupy())] == [10, 11, 12, 13]
    for wrong in ("stream", True, None, 1.5):
        with pytest.raises(OperandError, match="expected a CUDA stream"):
            stream_handle(wrong)


def test_alignment_follows_the_rows() -> None:
    assert [alignment_of(TensorSpec("b", (8, n), DType.FLOAT16)) for n in (1, 6, 8, 24)] == [2, 4, 16, 16]
    assert alignment_of(TensorSpec("bias", (7,), DType.FLOAT32)) == 4


@pytest.mark.parametrize(
    ("address", "row_bytes", "wanted"),
    [(0x1000, 32, 0), (0x1008, 32, 16), (0x1008, 24, 0), (0x1004, 24, 8), (0x1002, 6, 0), (0x1001, 6, 2)],
)
def test_arrays_on_a_device_are_aligned_to_what_kernels_read(
    address: int, row_bytes: int, wanted: int
) -> None:
    spec = TensorSpec("y", (3, row_bytes // 2), DType.FLOAT16)
    if not wanted:
        require_aligned(spec, address, "clone()")
        return
    with pytest.raises(OperandError, match=rf"y: .*aligned to {wanted} bytes.*clone\(\)"):
        require_aligned(spec, address, "clone()")


def test_the_package_exports_what_it_says() -> None:
    assert set(sparsegen.__all__) <= set(dir(sparsegen))
    assert all(getattr(sparsegen, name) is not None for name in sparsegen.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sparsegen.nothing


def test_operators_are_neither_pickled_nor_copied(pattern: Any) -> None:
    op = prepare(pattern)
    for refused in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(OperandError, match="neither pickled nor copied: write it with"):
            refused(op)
