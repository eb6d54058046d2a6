"""Selection of the tensors to prune, with reasons for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sparsegen import arguments
from sparsegen.errors import PruningError, one_line
from sparsegen.pruning.weights import Weights, WeightSpec

_LISTED = 10


@dataclass(frozen=True, slots=True)
class Copied:
    """A tensor that goes through untouched, and the reason in a few words."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """Tensors that are pruned and those that are not, both in the order of the weights."""

    pruned: tuple[WeightSpec, ...]
    copied: tuple[Copied, ...]


def select(weights: Weights, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Selection:
    """Selects matrices and convolutions of floating-point numbers, among those that the globs leave.

    Args:
        include: globs (``*``, ``?``, ``[...]``, case matters); a name must match one of them; empty for all.
        exclude: globs that it must not match.

    Raises:
        PruningError: a glob of ``include`` matches nothing that can be pruned, one of ``exclude`` matches nothing at
            all, or nothing is left.
    """
    include = arguments.texts(include, "tensors", PruningError)
    exclude = arguments.texts(exclude, "exclude", PruningError)
    specs = weights.specs
    for glob in include:
        matching = [spec for spec in specs if _matches(spec, glob)]
        if not matching:
            raise PruningError(f"tensor = {glob!r} matches none of {_names(specs)}")
        if all(spec.obstacle for spec in matching):
            raise PruningError(
                f"tensor = {glob!r} matches nothing that can be pruned: {_reasons(matching)}; pruned are 2-D and 4-D "
                "tensors of float16, bfloat16, float32 and float64"
            )
    for glob in exclude:
        if not any(_matches(spec, glob) for spec in specs):
            raise PruningError(f"exclude = {glob!r} matches none of {_names(specs)}")
    pruned, copied = [], []
    for spec in specs:
        reason = _reason(spec, include, exclude)
        if reason is None:
            pruned.append(spec)
        else:
            copied.append(Copied(spec.name, spec.shape, spec.dtype, reason))
    if not pruned:
        raise PruningError(
            f"{weights.source} has nothing to prune: "
            + (", ".join(f"{c.name} ({c.reason})" for c in copied[:_LISTED]) or "no tensors")
        )
    return Selection(tuple(pruned), tuple(copied))


def _matches(spec: WeightSpec, glob: str) -> bool:
    """True if the glob matches the name; a name with brackets matches itself."""
    return spec.name == glob or fnmatchcase(spec.name, glob)


def _reason(spec: WeightSpec, include: Sequence[str], exclude: Sequence[str]) -> str | None:
    if any(_matches(spec, glob) for glob in exclude):
        return "excluded"
    if include and not any(_matches(spec, glob) for glob in include):
        return "not among the tensors asked for"
    return spec.obstacle


def _names(specs: Sequence[WeightSpec]) -> str:
    names = sorted(spec.name for spec in specs)
    more = f", ... ({len(names)} in all)" if len(names) > _LISTED else ""
    return (", ".join(map(one_line, names[:_LISTED])) or "no tensors") + more


def _reasons(specs: Sequence[WeightSpec]) -> str:
    return ", ".join(f"{spec.name} ({spec.obstacle})" for spec in specs[:_LISTED])
