"""Problems of every operator: fields, round trips, what they refuse."""

from __future__ import annotations

import json
import pickle
import random
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from sparsegen.errors import ConfigError
from sparsegen.kernels import families_of
from sparsegen.operators import (
    OPERATORS,
    Activation,
    Block,
    BlockAttentionBackwardProblem,
    BlockAttentionProblem,
    Chosen,
    ConvEpilogue,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    FilterVolume,
    ImageLayout,
    ItemValues,
    Layout,
    MaskedConv2dProblem,
    MaskedConv2dWeightsProblem,
    MaskOf,
    MasksOf,
    PagedAttentionProblem,
    PageSize,
    Parameter,
    Problem,
    QuantizedSpmmProblem,
    Readout,
    Rest,
    SddmmEpilogue,
    SddmmProblem,
    SddProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SparseNetworkProblem,
    SpmmProblem,
    SubmanifoldConv3dProblem,
    SubmanifoldConv3dWeightsProblem,
    TokenOrder,
    ValueType,
    operator_named,
)
from sparsegen.testing.kinds import kinds, matrices_of
from sparsegen.testing.matrices import matrices
from sparsegen.verify.bounds import ErrorBound

PROBLEMS: list[Problem] = [
    SpmmProblem(3, 4, 5, DType.FLOAT16, Layout.COLUMN, Epilogue.BIAS),
    BlockAttentionProblem(3, 4, 1, 2, 16, DType.FLOAT16, Block(32, 16), masks=MasksOf.HEADS),
    BlockAttentionBackwardProblem(3, 4, 1, 2, 16, DType.FLOAT16, Block(32, 16), masks=MasksOf.HEADS),
    DsdProblem(3, 4, 5, DType.FLOAT16, Block(32, 16), epilogue=Epilogue.BIAS),
    DsdTransposedProblem(3, 4, 5, y_layout=Layout.COLUMN),
    MaskedConv2dProblem(3, 4, 5, 6, DType.BFLOAT16, density=Density(0.25), mask_of=MaskOf.INPUT),
    MaskedConv2dWeightsProblem(3, 4, 5, 6, 2, DType.BFLOAT16, density=Density(0.25)),
    PagedAttentionProblem(3, 4, 1, 2, 16, DType.FLOAT16, PageSize(16)),
    QuantizedSpmmProblem(3, 4, 5, DType.BFLOAT16, epilogue=Epilogue.BIAS, value_type=ValueType.E4M3),
    SddProblem(3, 4, 5, DType.BFLOAT16, density=Density(0.25)),
    SddmmProblem(3, 4, 5, DType.BFLOAT16, SddmmEpilogue.SCALE),
    SoftmaxProblem(3, 4, DType.FLOAT16),
    SoftmaxBackwardProblem(3, 4, DType.BFLOAT16),
    SparseAttentionProblem(3, 4, 8, DType.FLOAT16),
    SparseNetworkProblem(3, 4, 5, DType.FLOAT16, Activation.NONE, Readout.TOTALS),
    SubmanifoldConv3dProblem(3, 4, 5, DType.FLOAT16, FilterVolume(1, 3, 5), epilogue=ConvEpilogue.BIAS),
    SubmanifoldConv3dWeightsProblem(3, 4, 5, DType.BFLOAT16, density=Density(0.25)),
]
BATCHES: list[Problem] = [
    SpmmProblem(67, 50, 5, DType.FLOAT16, Layout.COLUMN, Epilogue.BIAS_RESIDUAL, batch=3),
    SpmmProblem(67, 50, 5, batch=3, item_values=ItemValues.OWN),
    BlockAttentionProblem(67, 50, 2, 2, 16, DType.FLOAT16, Block(16, 16), order=TokenOrder.TOKENS, batch=3),
    BlockAttentionProblem(67, 50, 1, 2, 16, DType.BFLOAT16, masks=MasksOf.ITEMS_AND_HEADS, batch=3),
    DsdProblem(67, 50, 5, DType.FLOAT16, Block(32, 16), epilogue=Epilogue.BIAS_RESIDUAL, batch=3),
    DsdTransposedProblem(67, 50, 5, block=Block(16, 16), y_layout=Layout.COLUMN, batch=3),
    QuantizedSpmmProblem(67, 50, 5, epilogue=Epilogue.BIAS_RESIDUAL, batch=3),
    SddProblem(67, 50, 5, DType.BFLOAT16, Block(16, 32), batch=3),
    SddProblem(67, 50, 5, DType.FLOAT16, Block(16, 32), batch=3, rest=Rest.KEPT),
    MaskedConv2dProblem(67, 50, 4, 6, DType.FLOAT16, mask_of=MaskOf.INPUT, batch=3),
    MaskedConv2dProblem(67, 50, 4, 6, DType.FLOAT16, batch=3, layout=ImageLayout.NCHW),
    PagedAttentionProblem(67, 150, 2, 2, 16, DType.FLOAT16, PageSize(32), batch=3),
    PagedAttentionProblem(
        5, 50, 2, 1, 16, DType.BFLOAT16, chosen=Chosen.ALL, order=TokenOrder.HEADS, batch=3
    ),
    SddmmProblem(67, 50, 5, DType.BFLOAT16, SddmmEpilogue.SCALE, batch=3),
    SoftmaxProblem(67, 50, DType.FLOAT16, batch=3),
    SoftmaxBackwardProblem(67, 50, batch=3),
    SparseAttentionProblem(67, 50, 16, DType.FLOAT16, batch=3),
    SparseNetworkProblem(67, 50, 5, DType.FLOAT16, batch=3),
    SubmanifoldConv3dProblem(67, 50, 5, DType.FLOAT16, epilogue=ConvEpilogue.BIAS_RESIDUAL, batch=3),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.operator)


def test_every_operator_is_registered_and_has_a_family() -> None:
    assert list(OPERATORS) == [p.operator for p in PROBLEMS]
    for name in OPERATORS:
        assert operator_named(name).operator == name and families_of(name)
    with pytest.raises(
        ConfigError,
        match=r"no operator .gemm.; there are spmm, block_attention, block_attention_backward, dsd, dsd_transposed, ",
    ):
        operator_named("gemm")


@each_problem
def test_problems_survive_json_and_pickle(problem: Problem) -> None:
    fields = json.loads(json.dumps(problem.to_dict()))
    assert type(problem).from_dict(fields) == problem == pickle.loads(pickle.dumps(problem))
    assert type(problem).from_dict({**fields, "of another operator": 1}) == problem
    with pytest.raises(KeyError):
        type(problem).from_dict({name: fields[name] for name in fields if name != next(iter(problem.sizes))})
    with pytest.raises(ValueError, match="float31"):
        type(problem).from_dict({**fields, "dtype": "float31"})


@each_problem
def test_sizes_out_of_range_are_refused(problem: Problem) -> None:
    for name in problem.sizes:
        least = 0 if problem.has_pattern and name in problem.matrix_sizes else 1
        type(problem).from_dict(problem.to_dict() | {name: least})
        for size in (least - 1, 2**31):
            with pytest.raises(ConfigError, match=f"{name} = {size} is outside"):
                type(problem).from_dict(problem.to_dict() | {name: size})


def test_the_matrix_gives_its_sizes() -> None:
    assert SpmmProblem.of((3, 4), n=5) == SpmmProblem(3, 4, 5)
    assert SddmmProblem.of((3, 4), k=5, dtype="float16", epilogue="scale", layout=None) == SddmmProblem(
        3, 4, 5, DType.FLOAT16, SddmmEpilogue.SCALE
    )
    assert [p.matrix_shape for p in PROBLEMS] == [(3, 4)] * len(PROBLEMS)


WRONG: list[tuple[type[Problem], dict[str, Any], str]] = [
    (SddmmProblem, {}, "sddmm needs k"),
    (SpmmProblem, {"k": 4}, "spmm takes no k; it takes n, dtype, layout, epilogue"),
    (SoftmaxProblem, {"epilogue": "none"}, "sparse_softmax takes no epilogue; it takes dtype"),
    (SddmmProblem, {"k": 4, "epilogue": "bias"}, "epilogue = 'bias' is none of none, scale"),
    (SpmmProblem, {"n": 4.5}, "n = 4.5 is no whole number"),
    (SpmmProblem, {"n": 4, "dtype": "float8"}, "dtype = 'float8' is none of float32"),
]


@pytest.mark.parametrize(("kind", "options", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_wrong_options_are_refused(kind: type[Problem], options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        kind.of((3, 4), **options)


def test_only_epilogue_and_whose_the_values_are_are_no_part_of_the_kind() -> None:
    spmm = SpmmProblem(3, 4, 5)
    assert spmm.kind == SpmmProblem(7, 8, 9, epilogue=Epilogue.BIAS).kind
    assert spmm.kind == SpmmProblem(7, 8, 9, batch=2, item_values=ItemValues.OWN).kind
    assert (
        len({p.kind for p in (spmm, SpmmProblem(3, 4, 5, layout=Layout.COLUMN), SddmmProblem(3, 4, 5))}) == 3
    )
    assert str(PROBLEMS[0]) == "spmm m=3 k=4 n=5 float16 column epilogue=bias"
    assert str(BATCHES[1]) == "spmm m=67 k=50 n=5 batch=3 float32 row epilogue=none item_values=own"


@pytest.mark.parametrize("problem", [*PROBLEMS, *BATCHES], ids=str)
def test_the_kind_is_told_by_what_is_written(problem: Problem) -> None:
    for written in (problem.distinct(), problem.to_dict()):
        assert type(problem).kind_of(json.loads(json.dumps(written))) == problem.kind


@pytest.mark.parametrize("problem", BATCHES, ids=str)
def test_a_batch_is_its_items_one_after_another(problem: Problem) -> None:
    matrix = matrices()["empty_rows"]
    operands = problem.random_operands(np.random.default_rng(0), matrix.nnz)
    reference = problem.reference(matrix, operands)
    assert reference.exact.shape == reference.magnitude.shape == problem.result(matrix.nnz).shape
    parts = list(problem.batch_elements(matrix, operands))
    assert len(parts) == problem.batch == 3 and problem.alone.batch == 1
    for i, (own, given) in enumerate(parts):
        alone = problem.alone.reference(own, given)
        np.testing.assert_array_equal(reference.exact[i], alone.exact)
        np.testing.assert_array_equal(reference.magnitude[i], alone.magnitude)
        np.testing.assert_array_equal(reference.terms, alone.terms)
        assert [a.shape for a in given.values()] == [s.shape for s in problem.alone.operands(matrix.nnz)]
    assert not np.array_equal(reference.exact[0], reference.exact[1])
    cost, one = problem.cost(matrix.nnz), problem.alone.cost(matrix.nnz)
    assert cost.flop == 3 * one.flop and one.bytes < cost.bytes < 3 * one.bytes
    assert type(problem).from_dict(json.loads(json.dumps(problem.to_dict()))) == problem


@each_problem
def test_what_has_its_default_may_be_left_out(problem: Problem) -> None:
    """A field that is added to an operator after a file was written has to be."""
    fields, distinct = problem.to_dict(), problem.distinct()
    assert {name: json_value(getattr(problem, name)) for name in problem.fields} == fields
    defaults = {name: json_value(f.default) for name, f in problem.fields.items() if name not in distinct}
    assert defaults.keys() >= {"batch"} and fields == distinct | defaults
    assert type(problem).from_dict(distinct) == type(problem).from_dict(fields) == problem == problem.alone


def json_value(value: Any) -> Any:
    return value.json if isinstance(value, Parameter) else value


def test_batches_that_are_none() -> None:
    for problem in PROBLEMS:
        with pytest.raises(ConfigError, match=r"batch = 0 is outside \[1, "):
            type(problem).from_dict({**problem.to_dict(), "batch": 0})
    with pytest.raises(ConfigError, match="item_values = own is for a batch of several elements"):
        SpmmProblem(3, 4, 5, item_values=ItemValues.OWN)
    with pytest.raises(ConfigError, match="sparse_softmax takes no item_values; it takes dtype, batch"):
        SoftmaxProblem.of((3, 4), batch=2, item_values="own")


@pytest.mark.parametrize("operator", OPERATORS)
def test_operands_and_references_have_the_shapes_that_are_told(operator: str) -> None:
    rng = random.Random(0)
    family = families_of(operator)[0]
    for name in matrices_of(family):
        matrix = matrices()[name]
        for kind in kinds(family, rng):
            problem = kind.problem(matrix)
            operands = problem.random_operands(np.random.default_rng(0), matrix.nnz)
            assert list(operands) == [spec.name for spec in problem.operands(matrix.nnz)]
            for spec in problem.operands(matrix.nnz):
                assert operands[spec.name].shape == spec.shape
                assert operands[spec.name].dtype == spec.dtype.storage
            reference = problem.reference(matrix, operands)
            assert reference.exact.shape == reference.magnitude.shape == problem.result(matrix.nnz).shape, (
                name
            )
            assert reference.terms.ndim <= reference.exact.ndim
            np.broadcast_to(reference.terms, reference.exact.shape)
            bound = ErrorBound.ours(problem.dtype).of(reference.exact, reference.magnitude, reference.terms)
            is_kept = np.isnan(reference.exact)  # left as it was
            assert np.all((bound > 0) | is_kept) and reference.exact.dtype == np.float64
            cost = problem.cost(matrix.nnz)
            written = problem.result(matrix.nnz)
            assert (written.is_updated or cost.bytes >= written.nbytes) and cost.flop >= 0


def test_references_on_a_device_name_their_kernels() -> None:
    for kind in OPERATORS.values():
        assert bool(kind.reference_files) == (kind.fill_on is not Problem.fill_on), kind.operator
        assert all((files("sparsegen.backends.plain") / name).is_file() for name in kind.reference_files)
