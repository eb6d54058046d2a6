"""Operators in files: the packed matrix as it lies on the device, and all that a launch needs to know of it.

A file is a NumPy archive (``.npz``, not compressed): ``header`` is JSON, ``packed.NAME`` the bytes of each packed
array, ``source`` (int32) where each packed value came from, ``bias`` a kept bias. Archives carry checksums, so that
damage is found when they are read.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sparsegen import backends, kernels
from sparsegen.cache import publish_file
from sparsegen.device_memory import Buffer
from sparsegen.dispatch import Choice, How
from sparsegen.errors import OutputError, SavedOperatorError
from sparsegen.executor import Executor
from sparsegen.family import Array, Device, Family, PackedOnDevice
from sparsegen.launching import shared_executor
from sparsegen.operator import SparseOperator
from sparsegen.operators import SpmmProblem

FORMAT = 1
PREFIX = "packed."


def save_operator(operator: SparseOperator, file: str | Path | BinaryIO, *, updatable: bool = True) -> None:
    """Write an operator to a file, from which `sparsegen.load_operator` makes it again without packing.

    Args:
        file: a path, or a file open for writing (a part of a model's checkpoint, for example).
        updatable: also keep where each packed value came from, 4 bytes for each, which `update_values` needs.

    Raises:
        OutputError: the file cannot be written; what was there before is untouched.
        OperandError: ``updatable``, but the operator was itself loaded from a file without these numbers.
    """
    arrays = _arrays(operator, updatable=updatable)
    write: Any = np.savez  # its stub takes every name for an option
    if not isinstance(file, str | Path):
        write(file, **arrays)
        return
    try:
        with publish_file(Path(file)) as opened:
            write(opened, **arrays)
    except OSError as error:
        raise OutputError(f"cannot be written: {error}", path=file) from error


def read_operator(file: str | Path | BinaryIO, device: Device) -> SparseOperator:
    """See `sparsegen.load_operator`."""
    name = str(file) if isinstance(file, str | Path) else "the operator's file"
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        header = json.loads(arrays["header"].tobytes())
        if header["format"] != FORMAT:
            raise SavedOperatorError(f"{name} has format {header['format']}, this sparsegen reads {FORMAT}")
        return _operator(header, arrays, name, device)
    except (OSError, EOFError, KeyError, TypeError, AttributeError, ValueError, zipfile.BadZipFile) as error:
        raise SavedOperatorError(
            f"{name} is not an operator that sparsegen.save_operator wrote, or is damaged: {error}"
        ) from error


def _arrays(operator: SparseOperator, *, updatable: bool) -> dict[str, Array]:
    choice, prepared = operator.choice, operator.prepared
    packed, executor = prepared.packed, prepared.executor
    header = {
        "format": FORMAT,
        "family": choice.family.name,
        "packing_version": choice.family.packing_version,
        "config": choice.config_dict,
        "problem": choice.problem.to_dict(),
        "why": choice.why,
        "sizes": dict(packed.sizes),
        "scratch": dict(packed.scratch),
        "values": packed.values,
        "nnz": packed.nnz,
    }
    arrays = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
    with executor.entered():
        executor.synchronize()  # new values may be on their way
        for name, buffer in packed.buffers.items():
            arrays[PREFIX + name] = _bytes(buffer, executor)
        if updatable:
            arrays["source"] = _bytes(prepared.value_source(), executor).view(np.int32)
    bias = operator.bias
    return arrays if bias is None else arrays | {"bias": bias}


def _bytes(buffer: Buffer, executor: Executor) -> Array:
    found = np.empty(buffer.nbytes, dtype=np.uint8)
    executor.download(buffer, found)
    return found


def _operator(header: dict[str, Any], arrays: dict[str, Array], name: str, device: Device) -> SparseOperator:
    family = kernels.family(str(header["family"]))
    if header["packing_version"] != family.packing_version:
        raise SavedOperatorError(
            f"{name} was packed by another version of {family.name} ({header['packing_version']}, here "
            f"{family.packing_version}); prepare the matrix and save it again"
        )
    problem = SpmmProblem.from_dict(header["problem"])
    config = family.config(**header["config"])
    family.require_valid(problem, config, device)
    executor = shared_executor(device)
    packed = _packed(header, arrays, family, executor)
    bias = arrays.get("bias")
    return SparseOperator(
        Choice(
            problem, family, config, How.NAMED, f"loaded from a file; when it was prepared: {header['why']}"
        ),
        packed,
        executor=executor,
        toolchain=backends.toolchain(device),
        bias=None if bias is None else problem.dtype.from_storage(bias),
    )


def _packed(
    header: dict[str, Any], arrays: dict[str, Array], family: Family[Any, Any], executor: Executor
) -> PackedOnDevice:
    source = arrays.get("source")
    with executor.entered():
        buffers = {name: executor.upload(arrays[PREFIX + name]) for name in family.packed_names}
        executor.synchronize()  # launches may come on other streams than the uploads
    return PackedOnDevice(
        buffers=buffers,
        sizes={str(name): int(value) for name, value in header["sizes"].items()},
        values=header["values"],
        source=None if source is None else lambda: executor.upload(source),
        nnz=int(header["nnz"]),
        scratch={name: int(header["scratch"][name]) for name in family.scratch_names},
    )
