"""What users import from `sparsegen`: load, prune, look up, prepare, tune."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, overload

from sparsegen import backends
from sparsegen.dispatch.choice import Choice, How, OnMiss, choose
from sparsegen.dispatch.pruned_times import PrunedTimes, layer_time
from sparsegen.errors import ConfigError
from sparsegen.kernels import require_family
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix, as_csr
from sparsegen.matrix.load import load_matrix
from sparsegen.operators import (
    DType,
    Epilogue,
    ItemValues,
    Layout,
    Problem,
    SddmmEpilogue,
    SddmmProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SpmmProblem,
    member,
    operator_named,
)
from sparsegen.plan import dense_operator
from sparsegen.plan.dense_operator import DenseOperator
from sparsegen.plan.launching import shared_executor
from sparsegen.plan.operator import PreparedOperator, SparseOperator
from sparsegen.plan.pattern_operators import (
    SddmmOperator,
    SoftmaxBackwardOperator,
    SoftmaxOperator,
    SparseAttentionOperator,
)
from sparsegen.plan.saved_operator import read_operator, save_operator
from sparsegen.pruning.pruner import prune
from sparsegen.pruning.report import PruneReport
from sparsegen.settings import Settings
from sparsegen.tuning.report import Effort
from sparsegen.tuning_db.layers import Layers, files_state, open_layers, with_rates
from sparsegen.tuning_db.store import Store

if TYPE_CHECKING:
    from sparsegen.tuning.tuner import TuneResult

log = logging.getLogger(__name__)
SCALED = (SoftmaxProblem, SoftmaxBackwardProblem, SparseAttentionProblem)  # that take a scale

__all__ = [
    "as_csr",
    "load_matrix",
    "load_operator",
    "lookup",
    "prepare",
    "prune",
    "pruned_times",
    "save_operator",
    "tune",
]


def problem_of(matrix: CsrMatrix, operator: str, **options: int | str | None) -> Problem:
    """An operator's problem for this matrix; see `Problem.of`.

    Raises:
        ConfigError: an unknown operator, or an option that is missing, is none of the operator's or has no such value.
    """
    return operator_named(operator).of(matrix.shape, **options)


def lookup(
    matrix: Any,
    *,
    operator: str = SpmmProblem.operator,
    n: int | None = None,
    k: int | None = None,
    dtype: DType | str = DType.FLOAT32,
    layout: Layout | str | None = None,
    epilogue: Epilogue | SddmmEpilogue | str | None = None,
    batch: int = 1,
    item_values: ItemValues | str | None = None,
    transpose: bool = False,
    on_miss: OnMiss | str = OnMiss.NEAREST,
    device: Device | str | None = None,
    db: str | Path | None = None,
) -> Choice:
    """What `prepare` would run for this matrix, and why; nothing is compiled and no device is touched.

    The arguments are those of `prepare`.
    """
    csr, _ = _matrix_of(matrix, operator, transpose)
    given: dict[str, Any] = {"n": n, "k": k, "dtype": dtype, "layout": layout, "epilogue": epilogue}
    problem = problem_of(csr, operator, **given, batch=batch, item_values=item_values)
    return _choose(csr, problem, _device(device), db, OnMiss.parse(on_miss))


@overload
def prepare(
    matrix: Any,
    *,
    operator: Literal["spmm"] = ...,
    n: int,
    dtype: DType | str = ...,
    layout: Layout | str | None = ...,
    epilogue: Epilogue | str | None = ...,
    batch: int = ...,
    item_values: ItemValues | str | None = ...,
    bias: Any = ...,
    transpose: bool = ...,
    on_miss: OnMiss | str = ...,
    device: Device | str | None = ...,
    db: str | Path | None = ...,
    family: str | None = ...,
    config: Mapping[str, Any] | None = ...,
) -> SparseOperator | DenseOperator: ...


@overload
def prepare(
    matrix: Any,
    *,
    operator: Literal["sddmm"],
    k: int,
    dtype: DType | str = ...,
    epilogue: SddmmEpilogue | str | None = ...,
    batch: int = ...,
    on_miss: OnMiss | str = ...,
    device: Device | str | None = ...,
    db: str | Path | None = ...,
    family: str | None = ...,
    config: Mapping[str, Any] | None = ...,
) -> SddmmOperator: ...


@overload
def prepare(
    matrix: Any,
    *,
    operator: Literal["sparse_softmax"],
    dtype: DType | str = ...,
    scale: float | None = ...,
    batch: int = ...,
    on_miss: OnMiss | str = ...,
    device: Device | str | None = ...,
    db: str | Path | None = ...,
    family: str | None = ...,
    config: Mapping[str, Any] | None = ...,
) -> SoftmaxOperator: ...


@overload
def prepare(
    matrix: Any,
    *,
    operator: Literal["sparse_softmax_backward"],
    dtype: DType | str = ...,
    scale: float | None = ...,
    batch: int = ...,
    on_miss: OnMiss | str = ...,
    device: Device | str | None = ...,
    db: str | Path | None = ...,
    family: str | None = ...,
    config: Mapping[str, Any] | None = ...,
) -> SoftmaxBackwardOperator: ...


@overload
def prepare(
    matrix: Any,
    *,
    operator: Literal["sparse_attention"],
    k: int,
    dtype: DType | str = ...,
    scale: float | None = ...,
    batch: int = ...,
    on_miss: OnMiss | str = ...,
    device: Device | str | None = ...,
    db: str | Path | None = ...,
    family: str | None = ...,
    config: Mapping[str, Any] | None = ...,
) -> SparseAttentionOperator: ...


def prepare(
    matrix: Any,
    *,
    operator: str = SpmmProblem.operator,
    n: int | None = None,
    k: int | None = None,
    dtype: DType | str = DType.FLOAT32,
    layout: Layout | str | None = None,
    epilogue: Epilogue | SddmmEpilogue | str | None = None,
    batch: int = 1,
    item_values: ItemValues | str | None = None,
    bias: Any = None,
    scale: float | None = None,
    transpose: bool = False,
    on_miss: OnMiss | str = OnMiss.NEAREST,
    device: Device | str | None = None,
    db: str | Path | None = None,
    family: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> PreparedOperator | DenseOperator:
    """Choose a variant for an operator on this matrix, compile it, pack and upload the matrix; do it once.

    =============================  ================================  ==========================================
    operator                       options                           computes
    =============================  ================================  ==========================================
    ``"spmm"`` (default)           n, dtype, layout, epilogue, bias  ``op(b)``: C = epilogue(matrix · B)
    ``"sddmm"``                    k, dtype, epilogue                ``op(a, b)``: epilogue((A · Bᵀ) there)
    ``"sparse_softmax"``           dtype, scale                      ``op(values)``: the softmax of each row
    ``"sparse_softmax_backward"``  dtype, scale                      ``op(y, dy)``: the gradient of that softmax
    ``"sparse_attention"``         k, dtype, scale                   ``op(q, k, v)``: softmax(Q · Kᵀ there) · V
    =============================  ================================  ==========================================

    All of them take batch; of a batch of ``spmm`` there is item_values.

    Args:
        matrix: a `CsrMatrix`, or anything that `as_csr` takes (SciPy, NumPy, PyTorch, CuPy): the m × k matrix that
            ``spmm`` multiplies, or the m × n pattern of the others, whose values only ``epilogue="scale"`` reads.
        n: columns of B and C.
        k: columns of A and of B, which is n × k; of Q, K and V.
        dtype: of the matrix's values (which are rounded to it), of the operands and of the result; sums are float32.
        layout: ``"row"``: B is k × n and C is m × n. ``"column"``: B is n × k and C is n × m, both row-major
            (tokens × features), so that a linear layer needs no transpose. Default ``"row"``.
        epilogue: of ``spmm``: ``"none"``, ``"bias"``, ``"bias_relu"``, ``"bias_gelu"`` or ``"bias_residual"``; the
            bias has m values, the residual comes with each call and has C's shape. Of ``sddmm``: ``"none"``, or
            ``"scale"`` for a product with the matrix's values. Default ``"none"``.
        batch: items with this pattern that one launch computes. Above 1, operands and results have a leading dimension
            of it; biases and ``"scale"``'s values are those of all items.
        item_values: of a batch of ``spmm``: ``"shared"``: all items have the matrix's values. ``"own"``: each has its
            own, which ``update_values`` takes as batch × nnz; until then, the matrix's. Default ``"shared"``.
        bias: kept for every call; None to pass it with each call.
        scale: what values are multiplied with before the exponential; default 1, of ``sparse_attention`` 1 / √k.
        transpose: of ``spmm``: multiply by the matrix's transpose, C = epilogue(matrixᵀ · B). ``update_values`` still
            takes values in the order of the matrix itself, and packs nothing anew (Gale et al., SC 2020, section VII).
            A `CsrMatrix` works its transposed pattern out once.
        on_miss: what to do when neither this workload nor one like it was measured, see `dispatch.OnMiss`;
            ``"dense"`` is for ``spmm`` without a batch.
        device: ``"cuda:0"``, ``"emulator"`` or a `Device`; default SPARSEGEN_DEVICE, else the first GPU, else
            the emulator.
        db: path or URL of the tuning database; default SPARSEGEN_DB, else the user's own.
        family, config: run this family, its guess changed by ``config``, instead of what the database says.

    Returns:
        An operator object: a `SparseOperator`, `SddmmOperator`, `SoftmaxOperator`, `SoftmaxBackwardOperator` or
        `SparseAttentionOperator`. A `DenseOperator` only for ``on_miss="dense"``.

    Raises:
        MatrixError: the matrix is malformed.
        ConfigError: an unknown word, an option that the operator does not take or lacks, or a config that is not
            valid here.
        OperandError: a bias of the wrong shape.
        DeviceUnavailableError: the device or its compiler is missing.
        NoVariantError: nothing may run.
        DatabaseError: the tuning database cannot be read.
    """
    csr, value_order = _matrix_of(matrix, operator, transpose)
    options: dict[str, Any] = {"n": n, "k": k, "dtype": dtype, "layout": layout, "epilogue": epilogue}
    options |= {"batch": batch, "item_values": item_values}
    problem = problem_of(csr, operator, **options)
    for name, value, owners in (("bias", bias, (SpmmProblem,)), ("scale", scale, SCALED)):
        if value is not None and not isinstance(problem, owners):
            raise ConfigError(f"{operator} takes no {name}; {owners[0].operator} does")
    where = _device(device)
    if family is not None:
        choice = named_choice(problem, Features.of(csr), where, family, config or {})
    elif config is not None:
        raise ConfigError("config= needs family=")
    else:
        miss = OnMiss.parse(on_miss)
        choice = _choose(csr, problem, where, db, miss)
        if miss is OnMiss.TUNE and not choice.is_hit:
            tune(csr, operator=operator, **options, device=where, db=db)
            choice = _choose(csr, problem, where, db, miss)
    if choice.use_dense:
        if dense_operator.is_available(where):
            return DenseOperator(choice, csr, where, bias=bias, value_order=value_order)
        log.warning("on_miss=dense needs PyTorch and a GPU; %s runs instead", choice.family.name)
        choice = replace(choice, use_dense=False)
    executor, toolchain = shared_executor(where), backends.toolchain(where)
    if isinstance(problem, SddmmProblem):
        return SddmmOperator(choice, csr, executor=executor, toolchain=toolchain)
    factor = 1.0 if scale is None else scale
    if isinstance(problem, SoftmaxProblem):
        return SoftmaxOperator(choice, csr, executor=executor, toolchain=toolchain, scale=factor)
    if isinstance(problem, SoftmaxBackwardProblem):
        return SoftmaxBackwardOperator(choice, csr, executor=executor, toolchain=toolchain, scale=factor)
    if isinstance(problem, SparseAttentionProblem):
        factor = problem.k**-0.5 if scale is None else scale
        return SparseAttentionOperator(choice, csr, executor=executor, toolchain=toolchain, scale=factor)
    return SparseOperator(
        choice, csr, executor=executor, toolchain=toolchain, bias=bias, value_order=value_order
    )


def load_operator(file: str | Path | BinaryIO, *, device: Device | str | None = None) -> SparseOperator:
    """An operator that `save_operator` wrote, uploaded as it was packed: nothing is looked up or packed again.

    Load only what you trust: a file that was changed on purpose can make the kernel read out of bounds.

    Args:
        file: a path, or a file open for reading (seekable).
        device: as for `prepare`; it may be another one than that which it was prepared for.

    Raises:
        SavedOperatorError: no such file, damaged, or packed by another version; prepare and save it again.
        ConfigError: the variant is not valid on this device.
        DeviceUnavailableError, CompileError, LaunchError: as for `prepare`.
    """
    return read_operator(file, _device(device))


def named_choice(
    problem: Problem, features: Features, device: Device, family: str, config: Mapping[str, Any]
) -> Choice:
    """A variant that the caller names: the family's guess for these features, changed by ``config``.

    Raises:
        ConfigError: a family that is unknown or of another operator, an unknown tunable or value, a config that is not
            valid here, or one that does not suit a matrix of these features.
    """
    known = require_family(family, problem)
    guess = known.config_dict(known.guess(problem, features, device))
    values = known.config(**{**guess, **config})
    known.require_suited(problem, features, values, device)
    return Choice(problem, known, values, How.NAMED, "named by the caller")


def tune(
    matrix: Any,
    *,
    operator: str = SpmmProblem.operator,
    n: int | None = None,
    k: int | None = None,
    dtype: DType | str = DType.FLOAT32,
    layout: Layout | str | None = None,
    epilogue: Epilogue | SddmmEpilogue | str | None = None,
    batch: int = 1,
    item_values: ItemValues | str | None = None,
    transpose: bool = False,
    effort: Effort | str = Effort.NORMAL,
    trials: int | None = None,
    seconds: float | None = None,
    device: Device | str | None = None,
    db: str | Path | None = None,
    **options: Any,
) -> TuneResult:
    """Find the fastest variant for an operator on this matrix, verify it and record it.

    The arguments that are not named here are those of `prepare`, which then finds the winner.

    Args:
        effort: ``"quick"``, ``"normal"`` or ``"max"``: how long to search, without trials or seconds.
        trials, seconds: when the search ends instead; at whichever comes first.
        db: where to record; default SPARSEGEN_DB, else the user's own.
        options: see `sparsegen.tuning.tuner.tune`: families, progress, baselines, seed.

    Raises:
        What `sparsegen.tuning.tuner.tune` raises, and MatrixError for a malformed matrix.
    """
    from sparsegen.tuning import tuner

    csr, _ = _matrix_of(matrix, operator, transpose)
    given: dict[str, Any] = {"n": n, "k": k, "dtype": dtype, "layout": layout, "epilogue": epilogue}
    problem = problem_of(csr, operator, **given, batch=batch, item_values=item_values)
    budget = tuner.Budget(trials, seconds, member(tuner.Effort, effort, "effort"))
    with Store.open(db or Settings.from_environment().db) as store:
        return tuner.tune(csr, problem, device=_device(device), store=store, budget=budget, **options)


def pruned_times(
    report: PruneReport,
    *,
    n: int,
    dtype: DType | str = DType.FLOAT32,
    layout: Layout | str = Layout.ROW,
    device: Device | str | None = None,
    db: str | Path | None = None,
) -> PrunedTimes:
    """What products with the layers that `prune` made take, as far as it was measured; nothing is run.

    The arguments are those of `prepare`. A layer is taken as its m × k matrix, a convolution's as
    C_out × C_in·H·W.

    Raises:
        ConfigError: n below 1, or an unknown dtype or layout.
        DatabaseError: the tuning database cannot be read.
    """
    where, database = _device(device), _shared_layers(db)
    kind, order = member(DType, dtype, "dtype"), member(Layout, layout, "layout")
    times = [layer_time(layer, n, kind, order, where, database) for layer in report.layers]
    return PrunedTimes(n, kind, order, where, tuple(times))


def _matrix_of(matrix: Any, operator: str, transpose: bool) -> tuple[CsrMatrix, Array | None]:
    """The sparse matrix of a problem, and which of the given matrix's values each of its nonzeros has; None: its own.

    Raises:
        ConfigError: a transpose of what has none.
    """
    csr = as_csr(matrix)
    if not transpose:
        return csr, None
    if operator != SpmmProblem.operator:
        raise ConfigError(f"{operator} takes no transpose; {SpmmProblem.operator} does")
    return csr.transposed(), csr.transposition().source


def _device(device: Device | str | None) -> Device:
    return device if isinstance(device, Device) else backends.find_device(device)


def _choose(
    matrix: CsrMatrix, problem: Problem, device: Device, db: str | Path | None, miss: OnMiss
) -> Choice:
    if miss is OnMiss.DENSE and not isinstance(problem, SpmmProblem):
        raise ConfigError(f"on_miss = dense is for spmm: there is no dense {problem.operator} to run instead")
    if miss is OnMiss.DENSE and problem.batch > 1:
        raise ConfigError(f"on_miss = dense runs one item; prepare them without it (batch = {problem.batch})")
    features, fingerprint = Features.of(matrix), matrix.fingerprint()
    return choose(problem, features, fingerprint, device, _shared_layers(db), on_miss=miss)


def described(device: Device, db: str | Path | None = None) -> Device:
    """The device with the rates that a tuning database has of it; as it is where none has."""
    return with_rates(device, _shared_layers(db))


_layers: dict[str, tuple[object, Layers]] = {}
_layers_lock = threading.Lock()


def _shared_layers(db: str | Path | None) -> Layers:
    """The open databases, opened again when one of their files has changed."""
    settings = Settings.from_environment()
    key = f"{db or settings.db} {Path.cwd()}"
    with _layers_lock:
        state = files_state(settings, db)
        kept = _layers.get(key)
        if kept is not None and kept[0] == state:
            return kept[1]
        layers = open_layers(settings, db)
        if kept is not None:
            kept[1].close()  # a look-up under way keeps its connection until it is done
        _layers[key] = (state, layers)
        return layers
