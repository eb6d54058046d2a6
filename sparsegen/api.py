"""The interface that `sparsegen` exports: look up, prepare, tune. Modules that a call does not need are not imported
for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol, TypeVar, Unpack, overload

from sparsegen import arguments, backends
from sparsegen.backends.cuda import early_init
from sparsegen.errors import ConfigError, SparsegenError
from sparsegen.operators.base.default_operator import DEFAULT_OPERATOR

if TYPE_CHECKING:
    from sparsegen.dispatch.chosen import Choice
    from sparsegen.dispatch.options import (
        ChoiceOptions,
        Dense,
        KeepingOptions,
        OnMiss,
        Verify,
    )
    from sparsegen.dispatch.pruned_times import PrunedTimes
    from sparsegen.kernels.base import Device
    from sparsegen.operators import (
        DType,
        Epilogue,
        ItemValues,
        Layout,
        Operator,
        Problem,
        SparseOperator,
    )
    from sparsegen.pruning.report import PruneReport
    from sparsegen.render.standalone import Standalone
    from sparsegen.tuning.report import Effort, Progress, SamplerName
    from sparsegen.tuning.tuner import TuneResult
    from sparsegen.tuning_db.records import MeasuredAs

O = TypeVar("O", bound="Operator")  # noqa: E741
O_co = TypeVar("O_co", bound="Operator", covariant=True)

__all__ = [
    "load_operator",
    "lookup",
    "prepare",
    "pruned_times",
    "standalone_source",
    "tune",
]


class _Prepared(Protocol[O_co]):
    """A problem whose operator objects are of this type."""

    @property
    def operator_type(self) -> type[O_co]: ...


def lookup(
    matrix: object = None,
    problem: Problem | None = None,
    *,
    operator: str = DEFAULT_OPERATOR,
    transpose: bool = False,
    on_miss: OnMiss | str = "nearest",
    dense: Dense | str = "auto",
    l2: MeasuredAs | str | None = None,
    device: Device | str | None = None,
    db: str | Path | None = None,
    deterministic: bool | None = None,
    **options: object,
) -> Choice:
    """Returns the choice of `prepare` for this matrix; nothing is compiled and no device is touched.

    The arguments are those of `prepare`, without operands. If a probe would have to decide between dense and sparse
    (`Choice.is_open`), estimates answer. A GPU is taken as its driver described it to an earlier process, where nothing
    that the system tells has changed since.
    """
    known = backends.remembered_device(device)
    if known is None:
        _begin_driver(device)
    from sparsegen.dispatch import look_up
    from sparsegen.dispatch.options import DispatchOptions
    from sparsegen.dispatch.wanted import Wanted

    wanted = Wanted.of(matrix, problem, operator, transpose, options)
    asked, workload = DispatchOptions.of(on_miss, dense, l2, deterministic), look_up.workload_of(wanted, db)
    return look_up.choose(workload, known or _device(device), db, asked)


@overload
def prepare(
    matrix: Any = ...,
    *,
    problem: _Prepared[O],
    **options: Unpack[KeepingOptions],
) -> O: ...


@overload
def prepare(
    matrix: Any,
    problem: _Prepared[O],
    **options: Unpack[KeepingOptions],
) -> O: ...


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
    **options: Unpack[ChoiceOptions],
) -> SparseOperator: ...


@overload
def prepare(
    matrix: Any = ...,
    *,
    operator: str = ...,
    **options: Any,
) -> Operator: ...


def prepare(
    matrix: Any = None,
    problem: Any = None,
    *,
    operator: str = DEFAULT_OPERATOR,
    transpose: bool = False,
    on_miss: OnMiss | str = "nearest",
    dense: Dense | str = "auto",
    probe: bool = True,
    verify: Verify | str | None = None,
    l2: MeasuredAs | str | None = None,
    device: Device | str | None = None,
    db: str | Path | None = None,
    deterministic: bool | None = None,
    family: str | None = None,
    config: Mapping[str, object] | None = None,
    allow_overflow: bool = False,
    **options: Any,
) -> Operator:
    """Choose a variant for a problem on this matrix, compile it, pack and upload the matrix; do it once.

    A call names the computation by a problem (``prepare(matrix, SddmmProblem(m, n, k))``), or by an operator's name and
    the other fields of its problems (``prepare(matrix, operator="sddmm", k=64)``); without a name it is ``"spmm"``, the
    matrix times a dense one, which needs ``n``. docs/operators.md lists operators, their fields and their calls.

    Args:
        matrix: a `CsrMatrix`, or anything that `as_csr` takes (SciPy, NumPy, PyTorch, CuPy): the sparse matrix of
            ``spmm``, or the pattern of the others, whose values play a part only where the operator says so. None
            for operators whose mask comes with every call (``dsd``, ``sdd``): their sizes are fields of the problem.
        problem: a problem of this matrix's shape; then neither ``operator`` nor fields are given.
        operator: the name of an operator.
        transpose: take the matrix's transpose in its place, which operators say that they allow (``spmm``:
            C = epilogue(matrixᵀ · B)). ``update_values`` still takes values in the order of the matrix itself, and
            packs nothing anew (Gale et al., SC 2020, section VII). A `CsrMatrix` works its transposed pattern out once.
        on_miss: the action if neither this workload nor one like it was measured, see `dispatch.OnMiss`.
        dense: permission of a dense product by PyTorch in a variant's place: ``"auto"`` if it takes less time and
            PyTorch is imported in this process, ``"never"`` or ``"always"``; for ``spmm``, products with masks, and
            ``masked_conv2d_weights`` of 16 bits and one group, all without a batch. Operands are taken as they lie.
        probe: with ``dense="auto"``, time the variant and the dense product on the spot if estimates do not tell which
            is faster: a few milliseconds, once for each workload and device, recorded in the database; never while a
            CUDA graph is captured.
        verify: ``"first-use"`` holds a variant's result against the reference where its source digest first runs on a
            device with a driver, unless a measurement or an earlier check did; what is wrong is recorded, and the next
            best variant takes its place. Never while a CUDA graph is captured, nor where the host would need long for
            the reference. Default on GPUs; ``"never"`` is on the emulator.
        l2: the kind of times that counts, if there are such: ``"cold"``, ``"clean"``, ``"warm"`` or ``"graph"`` (see
            `MeasuredAs`); default cold.
        device: ``"cuda:0"``, ``"emulator"`` or a `Device`; default SPARSEGEN_DEVICE, else the first GPU, else
            the emulator.
        db: path or URL of the tuning database; default SPARSEGEN_DB, else the user's own.
        deterministic: choose only variants that give equal bits for equal inputs on every call; default
            SPARSEGEN_DETERMINISTIC, else any.
        family, config: run this family, its heuristic config changed by ``config``, instead of what the database says.
        allow_overflow: let finite values of the matrix become infinite in a narrower dtype; a warning counts them.
        options: fields of the problem, None for one that is not given; and operands to keep for every call: ``bias`` of
            ``spmm`` (m values; default None, to pass it with each call), ``scale`` of the softmaxes and of
            ``sparse_attention`` (a number, with which values are multiplied before the exponential; default 1, of
            attention 1 / √k), and of products with masks (a number that multiplies the result; default 1).

    Returns:
        The problem's operator object: for ``spmm`` a `SparseOperator`.

    Raises:
        MatrixError: the matrix is malformed, or finite values of it are infinite in the problem's dtype.
        ConfigError: an unknown word, an option that the operator does not take or lacks, a problem of another shape, or
            a config that is not valid here.
        OperandError: a bias of the wrong shape.
        DeviceUnavailableError: the device or its compiler is missing.
        NoVariantError: nothing may run.
        WrongResultError: a variant that was named gives wrong results here, or the best few all do.
        DatabaseError: the tuning database cannot be read.
    """
    _begin_driver(device)
    from sparsegen.dispatch import look_up
    from sparsegen.dispatch.named import chooser
    from sparsegen.dispatch.options import DispatchOptions, OnMiss, Verify
    from sparsegen.dispatch.wanted import Wanted, without_operands
    from sparsegen.operators.base.overflow import require_held
    from sparsegen.settings import Settings
    from sparsegen.tuning_db.shared_layers import place_of, shared_layers

    given, kept = without_operands(matrix, problem, operator, options)
    wanted = Wanted.of(matrix, problem, operator, transpose, given)
    held = wanted.problem.kept(kept)
    overflows = arguments.flag(allow_overflow, "allow_overflow")
    require_held(wanted.problem, wanted.matrix, allow_overflow=overflows)
    db, asked = place_of(db), DispatchOptions.of(on_miss, dense, l2, deterministic)
    workload = look_up.workload_of(wanted, db)
    may_probe = arguments.flag(probe, "probe")
    verifies = None if verify is None else Verify.parse(verify) is Verify.FIRST_USE
    decide = chooser(workload, db, asked, family, config)
    where, choice = _decided(device, decide)
    if verifies is None:
        verifies = where.backend != "emulator"
    if family is None and asked.on_miss is OnMiss.TUNE and not choice.is_hit:
        tune(
            wanted.matrix,
            wanted.problem,
            device=where,
            db=db,
            deterministic=asked.deterministic,
            allow_overflow=overflows,
        )
        choice = decide(where)
    from sparsegen.measure.preparing import Preparation

    preparation = Preparation(
        wanted.matrix,
        workload,
        where,
        str(db or Settings.from_environment().db),
        shared_layers(db),
        lambda failed: look_up.choose(workload, where, db, asked, failed),
        held,
        wanted.given.fingerprint() if wanted.problem.has_pattern else None,
        wanted.value_order,
        verifies,
        may_probe,
        asked.l2,
    )
    return wanted.problem.operator_type(wanted.problem, preparation.launcher(choice))


def standalone_source(
    matrix: object = None,
    problem: Problem | None = None,
    *,
    operator: str = DEFAULT_OPERATOR,
    transpose: bool = False,
    device: Device | str | None = None,
    db: str | Path | None = None,
    family: str | None = None,
    config: Mapping[str, object] | None = None,
    name: str = "kernel",
    **options: object,
) -> Standalone:
    """The program of the variant that `prepare` would run, or of one that is named: for nvcc alone (docs/ship.md).

    The arguments that are not named here are those of `prepare`; nothing is compiled.

    Args:
        device: a GPU that is here (``"cuda:0"``), a `Device`, or the name of one that is described, such as
            ``"nvidia-h100"``.
        name: of the source's file without its ending.

    Raises:
        ConfigError: no such GPU, variant, or program of it.
        MatrixError: the matrix is malformed.
        DatabaseError: the tuning database cannot be read.
    """
    from sparsegen.dispatch import look_up
    from sparsegen.dispatch.named import chooser
    from sparsegen.dispatch.options import DispatchOptions
    from sparsegen.dispatch.wanted import Wanted
    from sparsegen.render.standalone import standalone
    from sparsegen.tuning.prediction.targets import named_target

    name = arguments.text(name, "name")
    if not re.fullmatch(r"[\w.-]{1,100}", name, re.ASCII):
        raise ConfigError(
            f"name = {name[:40]!r}: letters, digits, '_', '.' and '-' alone name the source's file"
        )
    wanted = Wanted.of(matrix, problem, operator, transpose, options)
    target = named_target(device) if isinstance(device, str) else None
    where = _device(device) if target is None else target.device
    if where.backend != "cuda":
        raise ConfigError(
            'a standalone source is for a GPU: name one that is not here, as device="nvidia-h100"'
        )
    asked, workload = DispatchOptions.of("nearest", "never", None, None), look_up.workload_of(wanted, db)
    choice = chooser(workload, db, asked, family, config)(where)
    return standalone(choice.family, wanted.problem, choice.config, wanted.matrix, where, name=name)


def load_operator(file: str | Path | BinaryIO, *, device: Device | str | None = None) -> SparseOperator:
    """An operator that `save_operator` wrote, uploaded as it was packed: nothing is looked up or packed again.

    Load only what you trust: a file that was changed on purpose can make the kernel read out of bounds.

    Args:
        file: a path, or a file open for reading (seekable).
        device: see `prepare`; it may be another one than the operator was prepared for.

    Raises:
        SavedOperatorError: no such file, damaged, or packed by another version; prepare and save it again.
        ConfigError: the variant is not valid on this device.
        DeviceUnavailableError, CompileError, LaunchError: see `prepare`.
    """
    _begin_driver(device)
    from sparsegen.plan.saved_operator import read_operator

    return read_operator(file, _device(device))


def tune(
    matrix: object = None,
    problem: Problem | None = None,
    *,
    operator: str = DEFAULT_OPERATOR,
    transpose: bool = False,
    effort: Effort | str = "normal",
    trials: int | None = None,
    seconds: float | None = None,
    families: Sequence[str] | None = None,
    baselines: bool = True,
    again: bool = False,
    seed: int = 0,
    sampler: SamplerName | str = "candidates",
    progress: Progress | None = None,
    device: Device | str | None = None,
    db: str | Path | None = None,
    deterministic: bool | None = None,
    allow_overflow: bool = False,
    **options: object,
) -> TuneResult:
    """Find the fastest variant for a problem on this matrix, verify it and record it.

    The arguments that are not named here are those of `prepare` (without operands), which then finds the winner.

    Args:
        effort: ``"quick"``, ``"normal"`` or ``"max"``: the extent of the search, without trials or seconds.
        trials, seconds: end of the search instead, at whichever comes first.
        sampler: ``"candidates"`` (our own), or ``"tpe"``, ``"gp"`` (needs PyTorch) and ``"random"`` of Optuna: the
            strategy that chooses the next variant.
        families, baselines, again, seed: see `sparsegen.tuning.tuner.tune`. Where a search with this budget, or a
            longer one, had ended before, its result comes at once, unless ``again`` is set.
        progress: is told where the search stands; default a line on standard error, if that is a terminal or notebook.
        db: database to record in; default SPARSEGEN_DB, else the user's own.
        deterministic: try only variants that give equal bits for equal inputs on every call; default as for `prepare`.

    Raises:
        What `sparsegen.tuning.tuner.tune` raises, and MatrixError for a malformed matrix.
        KeyboardInterrupt: Ctrl-C; all that was measured is recorded, and the same call goes on from there.
    """
    _begin_driver(device)
    from sparsegen.dispatch.options import parse_deterministic
    from sparsegen.dispatch.wanted import Wanted
    from sparsegen.operators import member
    from sparsegen.settings import Settings
    from sparsegen.tuning import tuner
    from sparsegen.tuning.loop.status_line import StatusLine
    from sparsegen.tuning.report import Budget, Effort, SamplerName, silent
    from sparsegen.tuning_db.shared_layers import place_of

    wanted = Wanted.of(matrix, problem, operator, transpose, options)
    budget = Budget(trials, seconds, member(Effort, effort, "effort"))
    names = None if families is None else arguments.texts(families, "families")
    if names is not None and not names:
        raise ConfigError("families: expected one at least; leave them out to try all")
    compares, anew = arguments.flag(baselines, "baselines"), arguments.flag(again, "again")
    start, equal_bits = arguments.whole(seed, "seed", least=0), parse_deterministic(deterministic)
    overflows = arguments.flag(allow_overflow, "allow_overflow")
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress = {progress!r} is no function")
    where, place = _device(device), place_of(db)
    line = StatusLine.of_standard_error() if progress is None else None
    told = progress or line or silent
    with nullcontext() if line is None else line:
        result = tuner.tune(
            wanted.matrix,
            wanted.problem,
            device=where,
            store=place or Settings.from_environment().db,
            budget=budget,
            families=names,
            baselines=compares,
            again=anew,
            seed=start,
            deterministic=Settings.from_environment().deterministic if equal_bits is None else equal_bits,
            sampler=member(SamplerName, sampler, "sampler"),
            allow_overflow=overflows,
            progress=told,
            even_if_ended=False,
        )
    if result.was_interrupted:
        raise KeyboardInterrupt
    return result


def pruned_times(
    report: PruneReport,
    *,
    n: int,
    dtype: DType | str = "float32",
    layout: Layout | str = "row",
    device: Device | str | None = None,
    db: str | Path | None = None,
) -> PrunedTimes:
    """Returns the times of products with the layers that `prune` made, as far as measured; nothing is run.

    The arguments are those of `prepare`. A layer is taken as its m × k matrix, a convolution's as
    C_out × C_in·H·W.

    Raises:
        ConfigError: n below 1, or an unknown dtype or layout.
        DatabaseError: the tuning database cannot be read.
    """
    _begin_driver(device)
    from sparsegen.dispatch.pruned_times import PrunedTimes, layer_time
    from sparsegen.operators import DType, Layout, SpmmProblem, member
    from sparsegen.pruning.report import PruneReport
    from sparsegen.tuning_db.shared_layers import shared_layers

    arguments.instance(report, PruneReport, "report")
    where, database = _device(device), shared_layers(db)
    kind, order = member(DType, dtype, "dtype"), member(Layout, layout, "layout")
    times = [
        layer_time(layer, SpmmProblem(layer.features.m, layer.features.k, n, kind, order), where, database)
        for layer in report.layers
    ]
    return PrunedTimes(n, kind, order, where, tuple(times))


def _begin_driver(device: Device | str | None) -> None:
    """Start the NVIDIA driver beside the imports that follow, where `_device` is to ask it."""
    if backends.may_be_gpu(device):
        early_init.begin_once()


def _device(device: Device | str | None) -> Device:
    from sparsegen.kernels.base import Device

    return device if isinstance(device, Device) else backends.find_device(device)


def _decided(device: Device | str | None, decide: Callable[[Device], Choice]) -> tuple[Device, Choice]:
    """The device as its driver describes it, and what is decided for it: beside the driver's start, where it can be.

    What was decided for a remembered description counts only where the driver gives the same one.
    """
    known, choice = backends.remembered_device(device), None
    if known is not None:
        with suppress(SparsegenError):  # errors are reported below, for the device that is there
            choice = decide(known)
    where = _device(device)
    if known is None or choice is None or not backends.is_same(known, where):
        choice = decide(where)
    return where, choice
