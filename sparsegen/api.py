"""What users import from `sparsegen`: load, prune, look up, prepare, tune."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from sparsegen import backends, dense_operator, dispatch
from sparsegen.dense_operator import DenseOperator
from sparsegen.dispatch import Choice, How, OnMiss
from sparsegen.errors import ConfigError
from sparsegen.family import Device
from sparsegen.features import Features
from sparsegen.formats import CsrMatrix, as_csr
from sparsegen.kernels import family as family_named
from sparsegen.launching import shared_executor
from sparsegen.matrix_io import load_matrix
from sparsegen.operator import SparseOperator
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem
from sparsegen.pruned_times import PrunedTimes, layer_time
from sparsegen.pruner import prune
from sparsegen.pruning.report import PruneReport
from sparsegen.saved_operator import read_operator, save_operator
from sparsegen.settings import Settings
from sparsegen.tuning.report import Effort
from sparsegen.tuning_db.layers import Layers, files_state, open_layers
from sparsegen.tuning_db.store import Store

if TYPE_CHECKING:
    from sparsegen.tuner import TuneResult

log = logging.getLogger(__name__)

E = TypeVar("E", bound=StrEnum)

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


def member(kind: type[E], value: E | str, name: str) -> E:
    """The enumeration's member for a word.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} = {value!r} is none of {', '.join(kind)}") from None


def problem_of(
    matrix: CsrMatrix, n: int, dtype: DType | str, layout: Layout | str, epilogue: Epilogue | str
) -> SpmmProblem:
    """The problem of multiplying this matrix.

    Raises:
        ConfigError: n below 1, or an unknown dtype, layout or epilogue; the message lists those there are.
    """

    m, k = matrix.shape
    return SpmmProblem(
        m,
        k,
        n,
        member(DType, dtype, "dtype"),
        member(Layout, layout, "layout"),
        member(Epilogue, epilogue, "epilogue"),
    )


def lookup(
    matrix: Any,
    *,
    n: int,
    dtype: DType | str = DType.FLOAT32,
    layout: Layout | str = Layout.ROW,
    epilogue: Epilogue | str = Epilogue.NONE,
    on_miss: OnMiss | str = OnMiss.NEAREST,
    device: Device | str | None = None,
    db: str | Path | None = None,
) -> Choice:
    """What `prepare` would run for this matrix, and why; nothing is compiled and no device is touched.

    The arguments are those of `prepare`.
    """
    csr = as_csr(matrix)
    problem = problem_of(csr, n, dtype, layout, epilogue)
    return _choose(csr, problem, _device(device), db, OnMiss.parse(on_miss))


def prepare(
    matrix: Any,
    *,
    n: int,
    dtype: DType | str = DType.FLOAT32,
    layout: Layout | str = Layout.ROW,
    epilogue: Epilogue | str = Epilogue.NONE,
    bias: Any = None,
    on_miss: OnMiss | str = OnMiss.NEAREST,
    device: Device | str | None = None,
    db: str | Path | None = None,
    family: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> SparseOperator | DenseOperator:
    """Choose a variant for ``C = epilogue(matrix · B)``, compile it, pack and upload the matrix; do it once.

    Args:
        matrix: m × k: a `CsrMatrix`, or anything that `as_csr` takes (SciPy, NumPy, PyTorch, CuPy).
        n: columns of B and C.
        dtype: of the matrix's values (which are rounded to it), of B and of C; sums are float32.
        layout: ``"row"``: B is k × n and C is m × n. ``"column"``: B is n × k and C is n × m, both row-major
            (tokens × features), so that a linear layer needs no transpose.
        epilogue: ``"none"``, ``"bias"`` or ``"bias_relu"``; the bias has m values.
        bias: kept for every call; None to pass it with each call.
        on_miss: what to do when neither this workload nor one like it was measured, see `dispatch.OnMiss`.
        device: ``"cuda:0"``, ``"emulator"`` or a `Device`; default SPARSEGEN_DEVICE, else the first GPU, else
            the emulator.
        db: path or URL of the tuning database; default SPARSEGEN_DB, else the user's own.
        family, config: run this family, its guess changed by ``config``, instead of what the database says.

    Returns:
        An operator object: ``op(b)``; see `SparseOperator.__call__`. A `DenseOperator` only for
        ``on_miss="dense"``.

    Raises:
        MatrixError: the matrix is malformed.
        ConfigError: an unknown word, or a config that is not valid here.
        DeviceUnavailableError: the device or its compiler is missing.
        NoVariantError: nothing may run.
        DatabaseError: the tuning database cannot be read.
    """
    csr = as_csr(matrix)
    problem = problem_of(csr, n, dtype, layout, epilogue)
    where = _device(device)
    if family is not None:
        choice = named_choice(problem, Features.of(csr), where, family, config or {})
    elif config is not None:
        raise ConfigError("config= needs family=")
    else:
        miss = OnMiss.parse(on_miss)
        choice = _choose(csr, problem, where, db, miss)
        if miss is OnMiss.TUNE and not choice.is_hit:
            tune(csr, n=n, dtype=dtype, layout=layout, epilogue=epilogue, device=where, db=db)
            choice = _choose(csr, problem, where, db, miss)
    if choice.use_dense:
        if dense_operator.is_available(where):
            return DenseOperator(choice, csr, where, bias=bias)
        log.warning("on_miss=dense needs PyTorch and a GPU; %s runs instead", choice.family.name)
        choice = replace(choice, use_dense=False)
    return SparseOperator(
        choice, csr, executor=shared_executor(where), toolchain=backends.toolchain(where), bias=bias
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
    problem: SpmmProblem, features: Features, device: Device, family: str, config: Mapping[str, Any]
) -> Choice:
    """A variant that the caller names: the family's guess for these features, changed by ``config``.

    Raises:
        ConfigError: an unknown family, tunable or value, a config that is not valid here, or one that does not suit
            a matrix of these features.
    """
    known = family_named(family)
    guess = known.config_dict(known.guess(problem, features, device))
    values = known.config(**{**guess, **config})
    known.require_suited(problem, features, values, device)
    return Choice(problem, known, values, How.NAMED, "named by the caller")


def tune(
    matrix: Any,
    *,
    n: int,
    dtype: DType | str = DType.FLOAT32,
    layout: Layout | str = Layout.ROW,
    epilogue: Epilogue | str = Epilogue.NONE,
    effort: Effort | str = Effort.NORMAL,
    trials: int | None = None,
    seconds: float | None = None,
    device: Device | str | None = None,
    db: str | Path | None = None,
    **options: Any,
) -> TuneResult:
    """Find the fastest variant for ``C = epilogue(matrix · B)``, verify it and record it.

    The arguments that are not named here are those of `prepare`, which then finds the winner.

    Args:
        effort: ``"quick"``, ``"normal"`` or ``"max"``: how long to search, without trials or seconds.
        trials, seconds: when the search ends instead; at whichever comes first.
        db: where to record; default SPARSEGEN_DB, else the user's own.
        options: see `sparsegen.tuner.tune`: families, progress, baselines, seed.

    Raises:
        What `sparsegen.tuner.tune` raises, and MatrixError for a malformed matrix.
    """
    from sparsegen import tuner

    csr = as_csr(matrix)
    problem = problem_of(csr, n, dtype, layout, epilogue)
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


def _device(device: Device | str | None) -> Device:
    return device if isinstance(device, Device) else backends.find_device(device)


def _choose(
    matrix: CsrMatrix, problem: SpmmProblem, device: Device, db: str | Path | None, miss: OnMiss
) -> Choice:
    features, fingerprint = Features.of(matrix), matrix.fingerprint()
    return dispatch.choose(problem, features, fingerprint, device, _shared_layers(db), on_miss=miss)


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
