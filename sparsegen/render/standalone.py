"""A variant as a program of its own: one CUDA source with packing, launch, check and times, for nvcc alone.

Which operators and families there are programs of is told by the files below ``templates/standalone/``: a reference
for each operator; for each family that packs a matrix either the packing in C++, or the layout of its arrays in words,
which are then written beside the source.
"""

from __future__ import annotations

import re
import struct
import textwrap
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from sparsegen.errors import ConfigError
from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily, Device, cuda_architecture
from sparsegen.kernels.config import Config
from sparsegen.kernels.launch import Argument, ArgumentKind
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.tensor_map import Swizzle, TensorMap
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import BlockAttentionProblem, DType, MaskedConv2dProblem, Problem
from sparsegen.operators.convolution.masked_conv2d import UNIT
from sparsegen.operators.masked.masked_problem import MaskedProblem
from sparsegen.render.published_code import COLUMNS, folded, without_emulator
from sparsegen.render.sources import environment, render
from sparsegen.system.json_object import Json
from sparsegen.system.numpy_types import Array

FOLDER = "standalone"
MAGIC = b"sparsegen packed 1\n"
_SWIZZLES = {
    Swizzle.NONE: "NONE",
    Swizzle.BYTES_32: "32B",
    Swizzle.BYTES_64: "64B",
    Swizzle.BYTES_128: "128B",
}
_WORDS = {"<i4": "int", "<u4": "unsigned", "<u2": "std::uint16_t", "<u8": "std::uint64_t"}
_LARGEST = {DType.FLOAT32: "3.4028234e38", DType.FLOAT16: "65504.0", DType.BFLOAT16: "3.3895314e38"}


@dataclass(frozen=True, slots=True)
class Standalone:
    """A program of one variant.

    Attributes:
        source: CUDA C++17, in lines of at most 120 columns.
        command: what compiles it, as its first lines say too.
        packed: the bytes of the file that the program reads; None where it needs none.
        packed_name: where it looks for that file, if it is given no path.
    """

    source: str
    command: str
    packed: bytes | None
    packed_name: str


def standalone(
    family: AnyFamily,
    problem: Problem,
    config: Config,
    matrix: CsrMatrix,
    device: Device,
    *,
    name: str = "kernel",
    density: float | None = None,
) -> Standalone:
    """The program of a variant.

    Args:
        config: valid for the problem on the device.
        matrix: the sparse one, or `Problem.without_pattern`.
        device: a GPU, whose multiprocessors the launch is laid out for.
        name: of the source's file without its ending, after which the packed file is called.
        density: of the matrices that the program draws, where it packs them itself and is given none; default that of
            the matrix.

    Raises:
        ConfigError: there are no programs of this operator, family or problem; the message names those that have them.
    """
    _require_known(family, problem)
    packed = family.pack(problem, config, matrix)
    launch = family.launch(problem, config, packed.sizes, device)
    if launch.is_empty:
        raise ConfigError(f"{problem} has no element to compute: there is nothing to launch")
    packs_itself, flop = is_packed_in_cpp(family), problem.cost(matrix.nnz).flop
    values = {
        "family": family,
        "problem": problem,
        "c": config,
        "device": device,
        "entry": family.entry,
        "device_code": without_emulator(render(family, problem, config)),
        "packs": bool(packed.arrays),
        "packs_itself": packs_itself,
        "packed_arrays": [
            _packed_array(name, packed) for name in family.packed_names if name in packed.arrays
        ],
        "packed_name": f"{name}.bin",
        "sizes": packed.sizes,
        "scratch": packed.scratch,
        "parameters": [_parameter(family, problem, config, packed, one) for one in family.arguments(problem)],
        "maps": bool(family.mapped_names),
        "launch": launch,
        "deterministic": family.is_deterministic(problem, config),
        "grid": "grid_of(packed)" if packs_itself else _dim3(launch.grid),
        "flop": f"{flop / max(1, matrix.nnz)} * matrix.nnz()" if packs_itself else f"{float(flop)}",
        "nnz": matrix.nnz,
        **_of_problem(problem, matrix, density),
    }
    architecture = cuda_architecture(device.compute_capability)
    # -arch=sm_90a alone would have nvcc 13 compile for compute_90 too, which lacks instructions.
    target = f"arch={architecture.replace('sm', 'compute')},code={architecture}"
    command = f"nvcc -O3 -std=c++17 -gencode {target} {name}.cu -o {name}"
    by_file = bool(packed.arrays) and not packs_itself
    values["banner"] = _banner(family, device, command, f"./{name}", f"{name}.bin" if by_file else None)
    if by_file:
        values["layout"] = environment().get_template(_layout(family)).render(values).rstrip()
    text = environment().get_template(f"{FOLDER}/program.cu.j2").render(values)
    file = _file(problem, matrix, family, packed) if by_file else None
    return Standalone(folded(re.sub(r"\n{3,}", "\n\n", text)), command, file, f"{name}.bin")


def is_packed_in_cpp(family: AnyFamily) -> bool:
    """True if programs of this family pack matrices themselves."""
    return _exists(_packing(family))


def has_standalone(family: AnyFamily) -> bool:
    """True if there are programs of this family at all."""
    is_laid_out = not family.packed_names or _exists(_packing(family)) or _exists(_layout(family))
    return is_laid_out and _exists(f"{FOLDER}/reference/{family.problem_type.operator}.cuh.j2")


def _packing(family: AnyFamily) -> str:
    return f"{FOLDER}/packing/{family.name}.cuh.j2"


def _layout(family: AnyFamily) -> str:
    return f"{FOLDER}/layout/{family.name}.cuh.j2"


def _exists(template: str) -> bool:
    return files("sparsegen.templates").joinpath(template).is_file()


def _require_known(family: AnyFamily, problem: Problem) -> None:
    """Raises ConfigError where there are no programs of a family or problem."""
    if not has_standalone(family):
        known = ", ".join(name for name, one in families().items() if has_standalone(one))
        raise ConfigError(f"no standalone source of {family.name}: there are those of {known}")
    if problem.batch > 1 and not isinstance(problem, MaskedConv2dProblem):
        raise ConfigError(
            f"a standalone source computes one batch element, and this problem has a batch of {problem.batch}"
        )
    if not isinstance(problem.multiplied, DType):
        raise ConfigError(f"no standalone source with factors of 8 bits ({problem.multiplied})")
    if isinstance(problem, BlockAttentionProblem) and problem.has_options:
        raise ConfigError("no standalone source of attention with partial blocks, changed scores or sinks")
    if isinstance(problem, BlockAttentionProblem) and problem.value_columns != problem.head_dim:
        raise ConfigError("no standalone source of attention whose values have other columns than its keys")


# --- what the templates are told ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PackedArray:
    """A packed array: its name, the type of its elements in C++, how many it has."""

    name: str
    type: str
    count: int


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter of the kernel: what declares it in the program, the address that is passed.

    Attributes:
        is_written: whether it is an operand that the kernel writes, to be looked at afterwards.
    """

    name: str
    declared: str
    passed: str
    is_written: bool = False


def _packed_array(name: str, packed: Packed[Array]) -> _PackedArray:
    array = packed.arrays[name]
    kind = "Stored" if name == packed.values else _WORDS[array.dtype.str]
    return _PackedArray(name, kind, array.size)


def _parameter(
    family: AnyFamily, problem: Problem, config: Config, packed: Packed[Array], argument: Argument
) -> _Parameter:
    """Code that stands for a parameter; tensor maps come first, and so arrays are declared before all parameters."""
    name = argument.name
    match argument.kind:
        case ArgumentKind.TENSOR_MAP:
            declared = _encoded_map(family.tensor_map(problem, config, name))
            return _Parameter(f"{name}_map", f"CUtensorMap {name}_map = {declared};", f"&{name}_map")
        case ArgumentKind.SIZE:
            known = packed.sizes[name] if name in packed.sizes else int(getattr(problem, name))
            is_counted = name in packed.sizes and is_packed_in_cpp(family)
            return _Parameter(name, f"int {name} = {f'packed.{name}' if is_counted else known};", f"&{name}")
        case ArgumentKind.PACKED:
            made = f"uploaded(packed.{name})" if name in packed.arrays else "nullptr"
        case ArgumentKind.SCRATCH:
            known_bytes = f"packed.{name}_bytes" if is_packed_in_cpp(family) else str(packed.scratch[name])
            made = f"allocated({known_bytes}, 0)"
        case ArgumentKind.OPERAND:
            made = f"uploaded(inputs.{name})"
        case ArgumentKind.RESULT:
            made = "allocated(result.size() * sizeof(Stored), 0xff)"
    is_written = argument.kind is ArgumentKind.OPERAND and any(
        spec.name == name and spec.is_written for spec in problem.operands(0)
    )
    return _Parameter(f"{name}_memory", f"void* {name}_memory = {made};", f"&{name}_memory", is_written)


def _encoded_map(wanted: TensorMap) -> str:
    """The expression that makes a tensor map."""
    kinds = {DType.FLOAT16: "FLOAT16", DType.FLOAT32: "FLOAT32", DType.BFLOAT16: "BFLOAT16"}
    assert isinstance(wanted.dtype, DType)
    lists = (wanted.sizes, wanted.strides, wanted.extents, wanted.element_steps)
    is_wide = wanted.swizzle is Swizzle.BYTES_128 and wanted.l2_bytes == 256
    parts = (
        f"{wanted.array}_memory",
        f"CU_TENSOR_MAP_DATA_TYPE_{kinds[wanted.dtype]}",
        *("{" + ", ".join(map(str, numbers)) + "}" for numbers in lists),
        f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[wanted.swizzle]}",
        f"CU_TENSOR_MAP_L2_PROMOTION_L2_{256 if is_wide else 128}B",
    )
    return f"tensor_map({', '.join(parts)})"


def _dim3(sides: tuple[int, int, int]) -> str:
    return f"dim3({', '.join(map(str, sides))})"


def _of_problem(problem: Problem, matrix: CsrMatrix, density: float | None) -> Json:
    """Facts of the problem that references and packings ask for, by names that every template has."""
    dtype, rows, columns = problem.dtype, *matrix.shape
    epilogue = getattr(problem, "epilogue", None)
    found: Json = {
        "dtype": dtype.value,
        "unit_roundoff": f"0x1p{int(np.log2(dtype.unit_roundoff))}",
        "smallest": "0x1p-24" if dtype is DType.FLOAT16 else "0x1p-126",
        "largest": _LARGEST[dtype],
        "has_pattern": problem.has_pattern,
        "rows": rows,
        "columns": columns,
        "density": density or matrix.nnz / max(1, rows * columns),
        "epilogue": "none" if epilogue is None else epilogue.value,
        "has_bias": getattr(epilogue, "has_bias", False),
        "has_residual": getattr(epilogue, "has_residual", False),
        "by_rows": getattr(problem, "layout", "row") == "row",
        "has_block_mask": isinstance(problem, MaskedProblem),
    }
    if isinstance(problem, MaskedProblem):
        found |= {
            "density": problem.density.share,
            "w_by_rows": getattr(problem, "w_layout", "row") == "row",
            "y_by_rows": problem.result_layout == "row",
            "rest_kept": getattr(problem, "rest", "filled") == "kept",
        }
    if isinstance(problem, MaskedConv2dProblem):
        found |= {
            "density": problem.density.share,
            "has_planes": problem.layout.has_planes,
            "mask_of": problem.mask_of.value,
            "rest_kept": problem.rest == "kept",
            "unit": UNIT,
        }
    if isinstance(problem, BlockAttentionProblem):
        found |= {
            "density": problem.density.share,
            "has_block_mask": problem.has_mask,
            "masks": (problem.heads if problem.masks.are_of_heads else 1) if problem.has_mask else 0,
            "by_tokens": problem.order == "tokens",
            "band": [int(word) for word in problem.band.words],
        }
    return found


def _banner(family: AnyFamily, device: Device, command: str, program: str, file: str | None) -> str:
    """The first lines: how to compile and run."""
    reads = f"; it reads {file}, which was written beside this source" if file else ""
    words = (
        f"{family.name} as a program of its own, laid out for {device.name}: it launches, checks the result against "
        f"float64 on the host, and takes times{reads}."
    )
    wrapped = textwrap.fill(words, COLUMNS, initial_indent="// ", subsequent_indent="// ")
    return f"{wrapped}\n//\n//   {command}\n//   {program}\n//"


# --- the file beside it ------------------------------------------------------------------------------------


def _file(problem: Problem, matrix: CsrMatrix, family: AnyFamily, packed: Packed[Array]) -> bytes:
    """The matrix and its packed arrays, as the program reads them."""
    arrays = (
        matrix.row_offsets.astype("<i4"),
        matrix.column_indices.astype("<i4"),
        problem.dtype.to_storage(matrix.values),
        *(packed.arrays[name] for name in family.packed_names if name in packed.arrays),
    )
    parts = (struct.pack("<Q", array.size) + np.ascontiguousarray(array).tobytes() for array in arrays)
    return MAGIC + b"".join(parts)
