"""Sparsity patterns as programs that leave the process carry them: index tensors, and not a number of this process.

What `torch.export`, `torch.jit.trace` and `torch.fx` write may be read by another process, in which a pattern's handle
names nothing, or another layer's pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, get_proxy_mode
from torch.multiprocessing.reductions import StorageWeakRef

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.direct import PLAIN, Held, is_exporting
from sparsegen.integrations.torch.pattern.pattern import SparsePattern, pattern_of

SCHEMA = "Tensor row_offsets, Tensor column_indices, int columns, str run_dense, str? db"
FIELDS = 5  # number of the schema's fields


def leaves_the_process() -> bool:
    """True if a program is being written that another process may read.

    What `torch.compile` makes stays here; it traces too, in a context of its own.
    """
    if is_exporting() or torch._C._get_tracing_state() is not None:
        return True
    if torch.compiler.is_dynamo_compiling():
        return False
    return get_proxy_mode() is not None and torch._guards.TracingContext.try_get() is None


def carried(pattern: SparsePattern | Outline) -> tuple[Any, ...]:
    """The pattern as arguments of `SCHEMA`.

    Raises:
        OperandError: a strict export cannot see them.
    """
    if isinstance(pattern, Outline):
        return pattern.given
    if torch.compiler.is_dynamo_compiling():
        raise OperandError("a sparsity pattern is exported with torch.export.export(..., strict=False)")
    with unset_fake_temporarily(), disable_proxy_modes_tracing():  # constants of what is traced
        offsets, columns = pattern.index_tensors()
    db = None if pattern.db is None else str(pattern.db)
    return offsets, columns, pattern.shape[1], pattern.run_dense.value, db


@dataclass(frozen=True, slots=True)
class Outline:
    """Outline of a pattern whose index tensors have no data.

    Attributes:
        given: the arguments of `SCHEMA`.
    """

    shape: tuple[int, int]
    nnz: int
    given: tuple[Any, ...]


def restored(
    offsets: Tensor, columns: Tensor, width: int, run_dense: str, db: str | None
) -> SparsePattern | Outline:
    """The pattern of such arguments: the same object for as long as the tensors' memory lives and is not written.

    Raises:
        MatrixError: they are no pattern with sorted columns.
    """
    if type(offsets) not in PLAIN or offsets.is_meta:
        given = (offsets, columns, width, run_dense, db)
        return Outline((offsets.shape[0] - 1, width), columns.shape[0], given)
    key = (_identity(offsets), _identity(columns), width, run_dense, db)
    found = _restored.get(key)
    if found is not None:
        return found[1]
    for old in [old for old, (memories, _) in _restored.items() if any(m.expired() for m in memories)]:
        del _restored[old]
    shape = (offsets.shape[0] - 1, width)
    with unset_fake_temporarily(), disable_proxy_modes_tracing():
        pattern = SparsePattern.of_csr(shape, offsets, columns, run_dense=run_dense, db=db)
    # Weak references keep the places of what is gone from being given to others, so that no key is met again.
    memories = tuple(StorageWeakRef(t.untyped_storage()) for t in (offsets, columns))
    _restored[key] = memories, pattern
    return pattern


_restored: dict[tuple[Any, ...], tuple[tuple[StorageWeakRef, ...], SparsePattern]] = {}
HELD = Held(pattern_of, leaves_the_process, SCHEMA, FIELDS, carried, restored)


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    version = -1 if tensor.is_inference() else tensor._version
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), version
