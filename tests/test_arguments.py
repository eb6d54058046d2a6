"""Wrong arguments of every public function give a typed error in words; numbers of NumPy are as good as Python's."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wrong_values import (
    ARRAY,
    DEVICE,
    FLAG,
    FLAG_OR_NONE,
    MATRIX,
    NAMES,
    NUMBER,
    PAIR,
    PARAMETER,
    PLACE,
    SEED,
    SIDES,
    TEXT,
    TEXTS,
    WHOLE,
    WORD,
    is_refused_in_words,
)

import sparsegen
from sparsegen import api, arguments, masks
from sparsegen.errors import ConfigError
from sparsegen.operators import OPERATORS, Field, Problem, fields_of
from sparsegen.tuning.report import Budget

pytestmark = pytest.mark.usefixtures("own_database")
DENSE = np.triu(np.ones((8, 8), dtype=np.float32))
CSR = sparsegen.as_csr(DENSE)

SCORES = np.ones((1, 8, 8), np.float32)
PROBLEM = {"problem": (7, "spmm", [1], {}, object(), np.ones(2), sparsegen.SpmmProblem)}
FIELDS = {"n": WHOLE, "dtype": WORD, "layout": WORD, "epilogue": WORD, "batch": WHOLE, "item_values": WORD}
ASKED = {"matrix": MATRIX, **PROBLEM, "operator": WORD, "transpose": FLAG, "device": DEVICE, "db": PLACE}
CHOICE = {"dense": WORD, "l2": WORD, "probe": FLAG, "verify": WORD}
MASK = {"length": WHOLE, "causal": FLAG}


@dataclasses.dataclass(frozen=True)
class Row:
    """A public function, arguments with which it does nothing long, and wrong values for each of its parameters.

    Attributes:
        options: wrong values for what its ``**options`` take.
        free: parameters that take anything.
    """

    call: Callable[..., Any]
    good: Mapping[str, Any]
    wrong: Mapping[str, tuple[Any, ...]]
    options: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    free: tuple[str, ...] = ()


@cache
def prepared() -> Any:
    return sparsegen.prepare(CSR, n=4, device="emulator")


class Unwritable:
    """Stands for the operator that `save_operator` writes, so that nothing is compiled for its arguments."""


ROWS = {
    "load_operator": Row(
        sparsegen.load_operator, {"file": "none.op", "device": "emulator"}, {"file": PLACE, "device": DEVICE}
    ),
    "lookup": Row(
        sparsegen.lookup,
        {"matrix": CSR, "n": 4, "device": "emulator"},
        {**ASKED, "on_miss": WORD, "deterministic": FLAG_OR_NONE, "dense": WORD, "l2": WORD},
        {**FIELDS, "nonsense": (1,)},
    ),
    "prepare": Row(
        sparsegen.prepare,
        {"matrix": CSR, "n": 4, "device": "emulator", "family": "csr_spmm"},
        {**ASKED, "on_miss": WORD, "deterministic": FLAG_OR_NONE, **CHOICE, "family": TEXT, "config": NAMES,
         "allow_overflow": FLAG},
        {**FIELDS, "nonsense": (1,)},
    ),
    "prepare, chosen": Row(
        sparsegen.prepare, {"matrix": CSR, "n": 4, "device": "emulator"},
        {**ASKED, "on_miss": WORD, "deterministic": FLAG_OR_NONE, **CHOICE, "allow_overflow": FLAG}, FIELDS,
        free=("family", "config"),
    ),
    "standalone_source": Row(
        sparsegen.standalone_source,
        {"matrix": CSR, "n": 4, "device": "nvidia-h100", "family": "csr_spmm"},
        {**ASKED, "family": TEXT, "config": NAMES, "name": TEXT},
        FIELDS,
    ),
    "prune": Row(
        sparsegen.prune,
        {"weights": DENSE, "sparsity": 0.5},
        {
            "weights": (7, "x", None, [1], object(), {1: DENSE}, {"a": 7}, np.array([["a"]])),
            "pattern": WORD, "sparsity": (*NUMBER, 1, -0.5, np.nan), "scope": WORD,
            "tensors": TEXTS, "exclude": TEXTS, "score": WORD,
            "gradients": (7, "x", [1], object(), {1: DENSE}, {"a": 7}, np.array([["a"]]), DENSE),
        },
        free=("block", "nm"),
    ),
    "prune, block": Row(
        sparsegen.prune, {"weights": DENSE, "sparsity": 0.5, "pattern": "block"}, {"block": PAIR},
        free=("weights", "pattern", "sparsity", "scope", "nm", "score", "gradients", "tensors", "exclude"),
    ),
    "prune, nm": Row(
        sparsegen.prune, {"weights": DENSE, "pattern": "nm"}, {"nm": PAIR},
        free=("weights", "pattern", "sparsity", "scope", "block", "score", "gradients", "tensors", "exclude"),
    ),
    "rewinding_rounds": Row(
        sparsegen.rewinding_rounds, {"sparsity": 0.5, "epochs": 3},
        {"sparsity": (*NUMBER, 0, 1), "epochs": (*WHOLE, 0), "retrained": (*WHOLE, 0, 4), "rounds": (*WHOLE, 0)},
    ),
    "save_operator": Row(
        lambda operator, file, *, updatable=True: sparsegen.save_operator(
            prepared() if operator is Unwritable else operator, file, updatable=updatable
        ),
        {"operator": Unwritable, "file": "never.op"},
        {"operator": (7, "x", None, [1], CSR, object()), "file": PLACE, "updatable": FLAG},
    ),
    "tune": Row(
        sparsegen.tune,
        {"matrix": CSR, "n": 4, "device": "emulator"},
        {
            **ASKED, "effort": WORD, "trials": (*SEED, 0), "seconds": (*NUMBER, 0, -1.0, np.nan),
            "families": (*TEXTS, ["nonsense"]), "baselines": FLAG, "again": FLAG, "seed": SEED,
            "progress": (7, "x", [1]), "deterministic": FLAG_OR_NONE, "sampler": WORD,
            "allow_overflow": FLAG,
        },
        FIELDS,
    ),
    "prepare_attention": Row(
        sparsegen.prepare_attention,
        {"mask": CSR, "head_dim": 8, "heads": 2, "device": "emulator"},
        {
            "mask": MATRIX, "heads": (*WHOLE, 0), "head_dim": (*WHOLE, 0), "dtype": WORD, "scale": (*NUMBER, np.nan),
            "heads_at_once": (*WHOLE, 0), "implementation": WORD, "on_miss": WORD, "device": DEVICE, "db": PLACE,
        },
    ),
    "as_csr": Row(
        sparsegen.as_csr,
        {"obj": DENSE},
        {"obj": MATRIX, "drop_zeros": FLAG, "allow_nonfinite": FLAG, "source": TEXT},
    ),
    "load_matrix": Row(
        sparsegen.load_matrix,
        {"path": "none.npz"},
        {"path": PLACE, "tensor": TEXT, "seed": SEED, "memory_limit": (*WHOLE, 0)}
        | {"drop_zeros": FLAG, "allow_nonfinite": FLAG, "transpose": FLAG},
    ),
    "quantize": Row(
        sparsegen.quantize,
        {"matrix": CSR, "value_type": "int8"},
        {
            "matrix": MATRIX,
            "value_type": WORD,
            "group": (*WORD, 16),
            "dtype": (*WORD, "float32"),
            "symmetric": FLAG,
            "calibration": ("x", [[1.0, "a"]], np.ones(3), np.full((2, 8), np.nan), object()),
        },
    ),
    "load_quantized": Row(
        sparsegen.load_quantized, {"path": "none.npz"}, {"path": PLACE}, free=("module",)
    ),
    "band": Row(
        masks.band,
        {"length": 8},
        {**MASK, "width": (*WHOLE, 0), "sparsity": (*NUMBER, 2, np.nan), "seed": SEED},
    ),
    "blocks": Row(
        masks.blocks,
        {"length": 8, "block": 2},
        {**MASK, "block": (*WHOLE, 0), "neighbours": WHOLE, "extra": WHOLE, "seed": SEED},
    ),
    "sliding_window": Row(
        masks.sliding_window, {"length": 8, "window": 2}, {**MASK, "window": (*WHOLE, 0), "sinks": WHOLE}
    ),
    "reduce_mask": Row(
        masks.reduce_mask,
        {"scores": SCORES, "block": 2, "threshold": 0.5},
        {"scores": ARRAY, "block": SIDES, "threshold": NUMBER, "pool": WORD},
    ),
    "from_difference": Row(
        masks.from_difference,
        {"frame": SCORES, "previous": SCORES, "block": 2, "threshold": 0.5},
        {"frame": ARRAY, "previous": ARRAY, "block": SIDES, "threshold": NUMBER, "pool": WORD},
    ),
    "from_boxes": Row(
        masks.from_boxes,
        {"boxes": np.ones((2, 5), np.float32), "size": (1, 8, 8), "block": 2},
        {"boxes": ARRAY, "size": (7, "abc", (1, 8), (1, 0, 8), (1, 2.5, 8), None, object()), "block": SIDES},
    ),
    "from_blocks": Row(
        masks.from_blocks,
        {"blocks": np.zeros((2, 3), np.int64), "shape": (1, 4, 4)},
        {"blocks": ARRAY, "shape": (7, "abc", (1, 4), (1, 0, 4), (1, 2.5, 4), None, object())},
    ),
    "dilate": Row(
        masks.dilate,
        {"mask": np.ones((1, 4, 4), np.bool_), "size": (8, 8), "block": 2, "reach": masks.Reach(3)},
        {
            "mask": ARRAY, "size": PAIR, "block": SIDES, "reach": (3, (3, 3), None, object()),
            "out_block": tuple(one for one in SIDES if one is not None),
        },
    ),
    "pyramid": Row(
        masks.pyramid,
        {"mask": np.ones((1, 4, 4), np.bool_), "size": (8, 8), "block": 2, "layers": [masks.Reach(3)]},
        {"mask": ARRAY, "size": PAIR, "block": SIDES, "layers": (3, [3], None, masks.Reach(3), object())},
    ),
    "resize": Row(
        masks.resize,
        {"mask": np.ones((1, 4, 4), np.bool_), "size": (8, 8), "block": 2, "out_size": (4, 4)},
        {
            "mask": ARRAY, "size": PAIR, "block": SIDES, "out_size": (*PAIR[1:], (0, 2)),
            "out_block": tuple(one for one in SIDES if one is not None), "margin": WHOLE,
        },
    ),
    "kernel_map": Row(
        masks.kernel_map,
        {"coordinates": np.zeros((1, 4), np.int32)},
        {"coordinates": ARRAY, "filter_size": (*WHOLE, 0, 2, (1,), "ab"), "dilation": (*WHOLE, 0, (1,), "ab")},
    ),
    "words_of": Row(masks.words_of, {"mask": np.ones((1, 4, 4), np.bool_)}, {"mask": ARRAY}),
    "strided": Row(masks.strided, {"length": 8, "stride": 2}, {**MASK, "stride": (*WHOLE, 0)}),
    "pruned_times": Row(
        api.pruned_times,
        {"report": sparsegen.prune(DENSE, sparsity=0.5).report, "n": 4, "device": "emulator"},
        {"report": (7, "x", None, [1]), "n": WHOLE, "dtype": WORD, "layout": WORD, "device": DEVICE, "db": PLACE},
    ),
}  # fmt: skip


def wrong_of(field: Field) -> tuple[Any, ...]:
    if field.is_size:
        return WHOLE
    return WORD if field.is_trait else PARAMETER


ROWS |= {
    kind.__name__: Row(
        kind,
        dict.fromkeys((*kind.matrix_sizes, *kind.dense_sizes), 8),
        {name: wrong_of(field) for name, field in fields_of(kind).items()},
    )
    for kind in OPERATORS.values()
}

CASES = [
    pytest.param(row, name, values, id=f"{label}-{name}")
    for label, row in ROWS.items()
    for name, values in (row.wrong | row.options).items()
]


def public_functions() -> dict[str, Callable[..., Any]]:
    """Those that users call with arguments of their own: functions, and the classes of problems."""
    names = {name: getattr(sparsegen, name) for name in sparsegen.__all__}
    names |= {name: getattr(masks, name) for name in masks.__all__}
    names |= {name: getattr(api, name) for name in api.__all__}
    is_problem = {kind.__name__: kind for kind in OPERATORS.values()}
    return {name: one for name, one in names.items() if inspect.isfunction(one)} | is_problem


def test_every_public_parameter_has_wrong_values() -> None:
    assert {label.partition(",")[0] for label in ROWS} == set(public_functions())
    for label, row in ROWS.items():
        function = public_functions()[label.partition(",")[0]]
        named = {
            p.name for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD
        }
        assert named == set(row.wrong) | set(row.free), f"{label}: a parameter without wrong values"


@pytest.mark.parametrize(("row", "name", "values"), CASES)
def test_wrong_values_are_refused_in_words(row: Row, name: str, values: tuple[Any, ...]) -> None:
    given = {k: v for k, v in row.good.items() if name != "problem" or k != "n"}
    assert not [value for value in values if not is_refused_in_words(row.call, given | {name: value})]


@pytest.mark.parametrize("scale", NUMBER)
@pytest.mark.parametrize("operator", ["sparse_softmax", "sparse_softmax_backward", "sparse_attention"])
def test_a_scale_that_is_no_number_is_refused(operator: str, scale: Any) -> None:
    options = {"k": 8} if operator == "sparse_attention" else {}
    with pytest.raises(ConfigError, match=r"scale = .* is no number"):
        sparsegen.prepare(CSR, operator=operator, scale=scale, device="emulator", **options)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_a_scale_that_is_not_finite_is_refused(scale: float) -> None:
    for options in (
        {"matrix": CSR, "operator": "sparse_softmax"},
        {"matrix": CSR, "operator": "sparse_attention", "k": 8, "dtype": "float16"},
        {"operator": "dsd", "m": 16, "k": 16, "n": 16},
    ):
        with pytest.raises(ConfigError, match=r"scale = .*: expected a finite number that float32 holds"):
            sparsegen.prepare(scale=scale, device="emulator", **options)


def test_what_is_taken_names_the_sizes_of_a_mask() -> None:
    with pytest.raises(ConfigError, match="dsd takes no colour; it takes m, k, n, dtype"):
        sparsegen.prepare(operator="dsd", m=16, k=16, n=16, colour=1)


def test_no_family_is_refused() -> None:
    with pytest.raises(ConfigError, match="families: expected one at least"):
        sparsegen.tune(CSR, n=8, families=[])


# --- numbers of NumPy ---

INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
integers = st.sampled_from(INTEGERS)
sizes = st.integers(1, 127)


@pytest.mark.parametrize("kind", OPERATORS.values(), ids=lambda kind: kind.operator)
@given(data=st.data())
def test_problems_of_numpy_integers_are_those_of_python(kind: type[Problem], data: st.DataObject) -> None:
    names = (*kind.matrix_sizes, *kind.dense_sizes, "batch")
    plain = {name: data.draw(sizes, name) for name in names}
    theirs = {name: data.draw(integers)(size) for name, size in plain.items()}
    ours, other = kind(**plain), kind(**theirs)
    assert other == ours and hash(other) == hash(ours) and str(other) == str(ours)
    assert all(type(getattr(other, name)) is int for name in names)
    assert other.cost(100) == ours.cost(100) and other.operands(100) == ours.operands(100)
    assert other.to_dict() == ours.to_dict()
    shape = tuple(theirs[name] for name in kind.matrix_sizes)
    assert kind.of(shape, **{n: theirs[n] for n in (*kind.dense_sizes, "batch")}) == ours


def test_problems_take_words() -> None:
    assert sparsegen.SpmmProblem(3, 4, 5, "float16") == sparsegen.SpmmProblem(
        3, 4, 5, sparsegen.DType.FLOAT16
    )


@given(integers, integers, st.integers(1, 40), st.integers(1, 40), st.integers(0, 3), st.booleans())
def test_masks_of_numpy_integers_are_those_of_python(
    one: Any, two: Any, length: int, size: int, extra: int, causal: bool
) -> None:
    for make, more in (
        (masks.band, {"sparsity": 0.5, "seed": extra}),
        (masks.sliding_window, {"sinks": extra}),
        (masks.strided, {}),
        (masks.blocks, {"neighbours": extra, "extra": extra, "seed": extra}),
    ):
        theirs = {k: two(v) if isinstance(v, int) else np.float32(v) for k, v in more.items()}
        ours = make(length, size, causal=causal, **more)
        other = make(one(length), two(size), causal=np.bool_(causal), **theirs)
        assert other.shape == ours.shape and other.fingerprint() == ours.fingerprint()


@given(integers, integers, st.sampled_from([np.float16, np.float32, np.float64]))
def test_requests_of_numpy_numbers_are_those_of_python(one: Any, two: Any, real: Any) -> None:
    assert Budget(one(3), real(1.5)) == Budget(3, 1.5)
    ours = sparsegen.prune(DENSE, pattern="block", sparsity=0.5, block=(2, 4))
    for block in ((one(2), two(4)), np.array([2, 4], dtype=one)):
        other = sparsegen.prune(DENSE, pattern="block", sparsity=real(0.5), block=block)
        assert np.array_equal(other.weights, ours.weights) and str(other.report) == str(ours.report)


@pytest.mark.parametrize("integer", INTEGERS, ids=lambda one: one.__name__)
def test_choices_for_numpy_integers_are_those_for_python(integer: Any) -> None:
    ours = sparsegen.lookup(CSR, n=100, batch=2, device="emulator")
    assert sparsegen.lookup(CSR, n=integer(100), batch=integer(2), device="emulator") == ours


def test_a_product_of_numpy_integers_runs(emulator_toolchain: Any) -> None:
    """A uint8 as n once overflowed in the strides, and the kernel read out of bounds."""
    b = np.arange(8 * 200, dtype=np.float32).reshape(8, 200)
    for n in (np.uint8(200), np.int64(200)):
        op = sparsegen.prepare(CSR, n=n, family="csr_spmm", device="emulator")
        np.testing.assert_allclose(op(b), DENSE @ b, rtol=1e-5)


def test_what_is_true_or_false() -> None:
    for value in (True, np.bool_(True), 1, np.int8(1)):
        assert arguments.flag(value, "x") is True
    for value in (False, np.bool_(False), 0, np.uint64(0)):
        assert arguments.flag(value, "x") is False


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8 GiB", 8 << 30),
        ("8GiB", 8 << 30),
        ("1.5 MB", 1_500_000),
        ("700", 700),
        (" 2 kib ", 2048),
        ("8G", 8 << 30),
        (64, 64),
    ],
)
def test_amounts_of_memory(text: Any, nbytes: int) -> None:
    assert arguments.nbytes(text, "memory") == nbytes


@pytest.mark.parametrize("wrong", ["", "much", "8 GiBs", "-1 GB", "0", "0.1", 0, -1, 2.5, None, True, "1e9"])
def test_what_is_no_amount_of_memory(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="memory"):
        arguments.nbytes(wrong, "memory")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("csr", "'csr' (did you mean 'csr_sddmm' or 'csr_spmm'?); there are csr_sddmm, csr_spmm, uspmm"),
        ("uspm", "'uspm' (did you mean 'uspmm'?); there are csr_sddmm, csr_spmm, uspmm"),
        ("CSR_SPMN", "'CSR_SPMN' (did you mean 'csr_spmm'?); there are csr_sddmm, csr_spmm, uspmm"),
        ("evil", "'evil'; there are csr_sddmm, csr_spmm, uspmm"),
        ("", "''; there are csr_sddmm, csr_spmm, uspmm"),
    ],
)
def test_a_name_that_is_not_known_is_told_what_it_may_mean(name: str, told: str) -> None:
    assert arguments.unknown(name, ("csr_sddmm", "csr_spmm", "uspmm")) == told
