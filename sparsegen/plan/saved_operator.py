"""Operators in files: the packed matrix as it lies on the device, and all that a launch needs to know of it.

A file is a NumPy archive (``.npz``, not compressed): ``header`` is JSON, ``packed.NAME`` the bytes of each packed
array, ``source`` (int32) where each packed value came from, ``bias`` a kept bias. Archives carry checksums, so that
damage is found when they are read.
"""

from __future__ import annotations

import json
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sparsegen import arguments, backends, kernels
from sparsegen.backends.executor import Executor
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.errors import OperandError, SavedOperatorError
from sparsegen.kernels.base import Device
from sparsegen.kernels.packed import Packed
from sparsegen.operators import SparseOperator, SpmmProblem
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.variant_launcher import VariantLauncher, variant_launcher
from sparsegen.system.device_memory import Buffer
from sparsegen.system.numpy_load import load_numpy
from sparsegen.system.numpy_types import Array
from sparsegen.system.publish import publish_file, reported

FORMAT = 1
PREFIX = "packed."
# Errors of NumPy, zipfile and json for other files.
FAULTS = (
    *(OSError, EOFError, LookupError, TypeError, AttributeError, ValueError, OverflowError, MemoryError),
    *(RuntimeError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)


def save_operator(operator: SparseOperator, file: str | Path | BinaryIO, *, updatable: bool = True) -> None:
    """Write an operator to a file, from which `sparsegen.load_operator` makes it again without packing.

    Args:
        file: a path, or a file open for writing (a part of a model's checkpoint, for example).
        updatable: also keep where each packed value came from, 4 bytes for each, which `update_values` needs.

    Raises:
        OutputError: the file cannot be written; what was there before is untouched.
        OperandError: an operator other than spmm, or one for which the dense product runs; or ``updatable``, but it was
            itself loaded from a file without these numbers.
    """
    if not isinstance(operator, SparseOperator):
        raise OperandError(
            f"only products (spmm) are saved, this is {type(operator).__name__}: prepare it again"
        )
    if not hasattr(file, "write"):
        arguments.location(file, "file")
    arrays = _arrays(operator, updatable=arguments.flag(updatable, "updatable"))
    write: Any = np.savez  # its stub takes every name for an option
    if not isinstance(file, str | Path):
        write(file, **arrays)
        return
    with reported(file), publish_file(Path(file)) as opened:
        write(opened, **arrays)


def read_operator(file: str | Path | BinaryIO, device: Device) -> SparseOperator:
    """See `sparsegen.load_operator`."""
    if not hasattr(file, "read"):
        arguments.location(file, "file")
    name = str(file) if isinstance(file, str | Path) else "the operator's file"
    try:
        with load_numpy(file) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.zip.infolist()):
                raise ValueError("parts of it are compressed, and could become a thousand times as large")
            saved = Saved.of({key: archive[key] for key in archive.files})
    except FileNotFoundError:
        raise SavedOperatorError(f"{name}: there is no such file") from None
    except FAULTS as error:
        raise SavedOperatorError(
            f"{name} is not an operator that sparsegen.save_operator wrote, or is damaged: {error}"
        ) from error
    family = saved.choice.family
    if saved.packing_version != family.packing_version:
        raise SavedOperatorError(
            f"{name} was packed by another version of {family.name} ({saved.packing_version}, here "
            f"{family.packing_version}); prepare the matrix and save it again"
        )
    family.require_valid(saved.problem, saved.choice.config, device)
    executor = shared_executor(device)
    launcher = VariantLauncher(
        saved.choice,
        saved.uploaded(executor),
        executor=executor,
        toolchain=backends.toolchain(device),
        kept=saved.problem.kept({} if saved.bias is None else {"bias": saved.bias}),
        pattern=saved.pattern,
    )
    return SparseOperator(saved.problem, launcher)


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """Contents of a file.

    Attributes:
        packed: the bytes of each packed array.
        source: see the module; None if it was left out.
        bias: real numbers.
        pattern: fingerprint of the matrix that was prepared; the first files lack it.
    """

    problem: SpmmProblem
    choice: Choice
    packing_version: int
    packed: dict[str, Array]
    sizes: dict[str, int]
    scratch: dict[str, int]
    values: str
    nnz: int
    source: Array | None
    bias: Array | None
    pattern: str | None

    @classmethod
    def of(cls, arrays: dict[str, Array]) -> Saved:
        """Raises KeyError, TypeError, AttributeError or ValueError where something is not as it should be."""
        header = json.loads(arrays["header"].tobytes())
        if header["format"] != FORMAT:
            raise ValueError(f"it has format {header['format']}, this sparsegen reads {FORMAT}")
        family, problem = kernels.family(str(header["family"])), SpmmProblem.from_dict(header["problem"])
        why = f"loaded from a file; when it was prepared: {header['why']}"
        bias = arrays.get("bias")
        return cls(
            problem=problem,
            choice=Choice(problem, family.config(**header["config"]), How.NAMED, why),
            packing_version=int(header["packing_version"]),
            packed={name: arrays[PREFIX + name] for name in family.packed_names},
            sizes={str(name): int(value) for name, value in header["sizes"].items()},
            scratch={name: int(header["scratch"][name]) for name in family.scratch_names},
            values=str(header["values"]),
            nnz=int(header["nnz"]),
            source=arrays.get("source"),
            bias=None if bias is None else problem.dtype.from_storage(bias),
            pattern=None if header.get("pattern") is None else str(header["pattern"]),
        )

    def uploaded(self, executor: Executor) -> Packed[Buffer]:
        source = self.source
        with executor.entered():
            buffers = {name: executor.upload(array) for name, array in self.packed.items()}
            executor.synchronize()  # launches may come on other streams than the uploads
        return Packed(
            arrays=buffers,
            sizes=self.sizes,
            nnz=self.nnz,
            values=self.values,
            value_source=None if source is None else lambda: executor.upload(source),
            scratch=self.scratch,
        )


def _arrays(operator: SparseOperator, *, updatable: bool) -> dict[str, Array]:
    launcher = variant_launcher(operator)
    choice, prepared = launcher.choice, launcher.prepared
    packed = prepared.packed
    header = {
        "format": FORMAT,
        "family": choice.family.name,
        "packing_version": choice.family.packing_version,
        "config": choice.config.to_dict(),
        "problem": choice.problem.to_dict(),
        "why": choice.why,
        "sizes": {name: int(value) for name, value in packed.sizes.items()},
        "scratch": {name: int(nbytes) for name, nbytes in packed.scratch.items()},
        "values": packed.values,
        "nnz": packed.nnz,
        "pattern": launcher.pattern,
    }
    arrays = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
    arrays |= {PREFIX + name: array for name, array in prepared.downloaded().items()}
    if updatable:
        arrays["source"] = prepared.downloaded_source()
    bias = operator.bias
    return arrays if bias is None else arrays | {"bias": bias}
