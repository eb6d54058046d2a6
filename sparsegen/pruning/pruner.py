"""Prune weights, in memory or in files, to patterns that sparse kernels like, and say what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen.errors import MatrixError, PruningError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.foreign import describe
from sparsegen.pruning.files.open import open_weights
from sparsegen.pruning.files.output import new_csr_folder, new_file, scipy_arrays
from sparsegen.pruning.groups import Scope
from sparsegen.pruning.plan import Plan, Progress, silent
from sparsegen.pruning.report import PruneReport
from sparsegen.pruning.request import BLOCK_PATTERNS, PatternName, PruneRequest
from sparsegen.pruning.score import Score
from sparsegen.pruning.selection import select
from sparsegen.pruning.torch_weights import TorchWeights, is_tensor
from sparsegen.pruning.weights import NumpyWeights
from sparsegen.system.numpy_types import Array

__all__ = ["Comparison", "OutputFormat", "Pruned", "compare_file", "prune", "prune_file"]

SINGLE = "weights"  # the name of an array that came without one


class OutputFormat(StrEnum):
    SAME = "same"  # the input's container, pruned tensors dense with zeros
    CSR_NPZ = "csr-npz"  # a folder of SciPy .npz files, one for each pruned layer


@dataclass(frozen=True, slots=True)
class Pruned:
    """Pruned weights and what became of them.

    Attributes:
        weights: weights of the given kind: one array or tensor, or a dictionary in the same order. Tensors that are not
            pruned are the given objects themselves.
    """

    weights: Any
    report: PruneReport

    def __repr__(self) -> str:
        return f"<Pruned: {self.report.summary}>"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Patterns on the same weights at the same sparsity.

    Attributes:
        reports: one for each pattern that can have this sparsity.
        left_out: the others, each with the reason.
    """

    reports: tuple[PruneReport, ...]
    left_out: tuple[tuple[PatternName, str], ...]


def prune(
    weights: object,
    *,
    pattern: PatternName | str = PatternName.UNIFORM,
    sparsity: float | None = None,
    scope: Scope | str | None = None,
    block: tuple[int, int] | None = None,
    nm: tuple[int, ...] | None = None,
    score: Score | str | None = None,
    gradients: object = None,
    tensors: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Pruned:
    """Zero the weights that matter least, in a pattern.

    Args:
        weights: a NumPy array or PyTorch tensor, or a dictionary of either by name. float16, bfloat16, float32
            and float64 of two dimensions are pruned, and of four (a convolution's weights, C_out × C_in × H × W,
            as the matrix C_out × C_in·H·W). Nothing that is given is changed.
        pattern: ``"uniform"``, ``"unstructured"``, ``"block"``, ``"blocked-uniform"`` or ``"nm"``.
        sparsity: share of weights that become zero, from 0 to below 1; not needed for ``"nm"``.
        scope: ``"global"`` (the default): one threshold over all tensors, or ``"layer"``: each has this sparsity.
        block: height and width of blocks; default 32 × 32.
        nm: N and M; default 2:4. V, N and M: in four of M columns that V rows have in common.
        score: what a group of weights is worth: ``"l2"`` (the default), ``"sum"`` or ``"max"`` of the magnitudes, or
            ``"taylor"``: the l2 norm of weight times gradient.
        gradients: for ``"taylor"``: of a loss by the weights, like ``weights``; of tensors that stay none is needed.
        tensors, exclude: globs of the names to prune (default all) and to leave.

    Raises:
        PruningError: a request that cannot be met.
        MatrixError: NaN or infinity in a tensor to be pruned, or weights of another kind.
    """
    request = PruneRequest.parse(pattern, sparsity, scope=scope, block=block, nm=nm, score=score)
    given = _by_name(weights)
    held = _in_memory(given)
    slopes = None if gradients is None else _in_memory(_by_name(gradients))
    plan = Plan(held, select(held, tensors, exclude), request, gradients=slopes)
    pruned = {
        name: held.pruned(name, plan.prune(name).mask) if name in plan.layers else tensor
        for name, tensor in given.items()
    }
    return Pruned(pruned if isinstance(weights, Mapping) else pruned[SINGLE], plan.report())


def pruned_matrices(
    weights: Mapping[str, object], request: PruneRequest
) -> tuple[Mapping[str, CsrMatrix], PruneReport]:
    """The sparse matrix of each layer that `prune` prunes, by name, for whoever makes something of all of them.

    Raises:
        As `prune`.
    """
    held = _in_memory(weights)
    plan = Plan(held, select(held), request)
    matrices = {name: plan.prune(name).matrix for name in weights if name in plan.layers}
    return matrices, plan.report()


def prune_file(
    path: str | Path,
    request: PruneRequest,
    *,
    output: str | Path | None = None,
    output_format: OutputFormat = OutputFormat.SAME,
    force: bool = False,
    gradients: str | Path | None = None,
    tensors: Sequence[str] = (),
    exclude: Sequence[str] = (),
    memory_limit: int | None = None,
    progress: Progress = silent,
    encode: Callable[[str, CsrMatrix], Mapping[str, Array]] = lambda _, matrix: scipy_arrays(matrix),
) -> PruneReport:
    """Prune the weights of a file.

    Args:
        path: ``.npz`` (arrays by name, or a matrix saved by SciPy), ``.npy`` or ``.safetensors``. Of ``.safetensors``
            and ``.npz`` one tensor is in memory at a time.
        output: a file of the input's suffix, or for ``CSR_NPZ`` a folder; None writes nothing. It appears whole
            or not at all.
        force: overwrite what is there.
        gradients: a file of gradients of a loss by the weights, under the same names, for the score ``"taylor"``.
        tensors, exclude: globs of the names to prune (default all) and to leave.
        memory_limit: bytes that one tensor may take, as `sparsegen.load_matrix` takes it.
        progress: called before each layer.
        encode: for ``CSR_NPZ``: makes the arrays of a layer's file of its name and matrix.

    Raises:
        PruningError: a request that cannot be met.
        MatrixError: a malformed file, or NaN or infinity in a tensor to be pruned.
        OutputError: the output is there already, or cannot be written.
    """
    source = Path(path)
    target = None if output is None else Path(output)
    if (
        target is not None
        and output_format is OutputFormat.SAME
        and target.suffix.lower() != source.suffix.lower()
    ):
        raise PruningError(
            f"{target}: the output is a {source.suffix.lower()} file like the input; name it so, or use csr-npz"
        )
    file = open_weights(source, memory_limit)
    slopes = None if gradients is None else open_weights(Path(gradients), memory_limit)
    selection = select(file, tensors, exclude)
    names = [spec.name for spec in selection.pruned]
    if target is None:
        plan = Plan(file, selection, request, progress, slopes)
        for name in names:
            plan.prune(name)
    elif output_format is OutputFormat.CSR_NPZ:
        with new_csr_folder(target, names, force=force) as folder:
            plan = Plan(file, selection, request, progress, slopes)
            for name in names:
                folder.add(name, encode(name, plan.prune(name).matrix))
    else:
        with new_file(target, force=force) as stream:
            plan = Plan(file, selection, request, progress, slopes)
            file.write(stream, names, lambda name: plan.prune(name).mask)
    return plan.report()


def compare_file(
    path: str | Path,
    sparsity: float,
    *,
    scope: Scope | str | None = None,
    block: tuple[int, int] | None = None,
    nm: tuple[int, ...] | None = None,
    tensors: Sequence[str] = (),
    exclude: Sequence[str] = (),
    memory_limit: int | None = None,
    progress: Progress = silent,
) -> Comparison:
    """Every pattern on the weights of a file, at one sparsity; nothing is written.

    The arguments are those of `prune` and `prune_file`; each goes to the patterns that it belongs to.

    Raises:
        PruningError: a request that cannot be met.
        MatrixError: a malformed file, or NaN or infinity in a tensor to be pruned.
    """
    n_of_m = PruneRequest.parse(PatternName.NM, nm=nm)
    requests, left_out = [], []
    for name in PatternName:
        if name is not PatternName.NM:
            blocks = block if name in BLOCK_PATTERNS else None
            requests.append(PruneRequest.parse(name, sparsity, scope=scope, block=blocks))
        elif n_of_m.sparsity == sparsity:
            requests.append(n_of_m)
        else:
            why = (
                f"{n_of_m.pattern.describe()} prunes {n_of_m.sparsity:.4g} of the weights, not {sparsity:.4g}"
            )
            left_out.append((name, why))
    reports = tuple(
        prune_file(
            path, request, tensors=tensors, exclude=exclude, memory_limit=memory_limit, progress=progress
        )
        for request in requests
    )
    return Comparison(reports, tuple(left_out))


def _by_name(weights: object) -> Mapping[str, Any]:
    return weights if isinstance(weights, Mapping) else {SINGLE: weights}


def _in_memory(given: Mapping[str, Any]) -> NumpyWeights | TorchWeights:
    """One kind of array under every name.

    Raises:
        MatrixError: another kind, or a mixture.
    """
    strange = next((name for name in given if not isinstance(name, str)), None)
    if strange is not None:
        raise MatrixError(f"names must be text, got {strange!r}", source=SINGLE)
    masked = [
        name for name in given if name.endswith("_orig") and f"{name.removesuffix('_orig')}_mask" in given
    ]
    if masked:
        raise PruningError(
            f"{masked[0]} has a mask of torch.nn.utils.prune beside it: multiply both, or call "
            "torch.nn.utils.prune.remove on the layer, before it is pruned again"
        )
    if given and all(is_tensor(value) for value in given.values()):
        return TorchWeights(given)
    for name, value in given.items():
        if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
            raise MatrixError(
                f"expected NumPy arrays or PyTorch tensors, all of one kind, got {describe(value)}",
                source=SINGLE,
                place=f"tensor {name!r}",
            )
    return NumpyWeights(given)
