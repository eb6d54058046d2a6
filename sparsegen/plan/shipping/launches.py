"""A bound variant as a shipped library has it: its binaries, its parameters, and the packed matrix as one array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen import backends
from sparsegen.backends.cuda.tensor_maps import DATA_TYPES
from sparsegen.errors import ConfigError, OperandError
from sparsegen.kernels.base import Device
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.operators import Layout, QuantizedSpmmProblem, SpmmProblem
from sparsegen.plan.binding import BoundVariant, launch_arguments
from sparsegen.system.integers import round_up
from sparsegen.system.numpy_types import Array

ALIGNMENT = 256  # bytes of what lies behind one another, as of device memory
RESULT = -1  # in the place of an operand's number, as in launch.h


@dataclass(frozen=True, slots=True)
class ShippedTarget:
    """A launch on one architecture.

    Attributes:
        capability: ten times the major number and the minor one; 0: the CPU.
        binary: a cubin, or a shared object of the emulator's compiler.
        digest: the binary's SHA-256, in hexadecimal digits.
    """

    capability: int
    binary: bytes
    digest: str
    launch: Launch


@dataclass(frozen=True, slots=True)
class ShippedMap:
    """A tensor map, and the number of its array among the operands, or `RESULT`."""

    array: int
    map: TensorMap
    data_type: int


@dataclass(frozen=True, slots=True)
class ShippedArgument:
    """A parameter of the kernel.

    Attributes:
        source: a word of launch.h's.
        value: its number there: of the operand, of bytes from the start, the size itself, or of the tensor map.
        nbytes: bytes of the array that it points to; 0 of what is passed by value.
    """

    source: str
    value: int
    nbytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ShippedLaunch:
    """The product of a linear layer with a number of tokens.

    Attributes:
        entry: name of the kernel function.
        targets: one for each architecture.
        scratch_bytes: bytes of all scratch memory, one part behind the other.
        weight: uint8: the packed arrays, one behind the other.
    """

    problem: SpmmProblem | QuantizedSpmmProblem
    family: str
    config: Mapping[str, object]
    entry: str
    targets: tuple[ShippedTarget, ...]
    arguments: tuple[ShippedArgument, ...]
    maps: tuple[ShippedMap, ...]
    scratch_bytes: int
    weight: Array


def shipped_launch(
    bound: BoundVariant, devices: Sequence[Device], kept: Mapping[str, Array] | None = None
) -> ShippedLaunch:
    """The launch of a variant, for devices that need not be here.

    Args:
        devices: one of each architecture.
        kept: operands that are part of the weight, in storage form by name: scales, zero points.

    Raises:
        ConfigError: the variant cannot run on one of them.
        OperandError: another product than that of a linear layer without a gradient.
        CompileError, DeviceUnavailableError: see `Toolchain.compile`.
    """
    rendered, packed = bound.compiled.rendered, bound.packed
    family, config, problem = rendered.family, rendered.config, rendered.problem
    if not isinstance(problem, SpmmProblem | QuantizedSpmmProblem) or not _is_of_linear_layer(problem):
        raise OperandError(f"{problem}: products of linear layers are shipped, and no others yet")
    constant = {
        name: np.ascontiguousarray(array).view(np.uint8).ravel() for name, array in (kept or {}).items()
    }
    places, weight = _behind_one_another(bound.downloaded() | constant)
    operands = {spec.name: spec for spec in problem.operands(packed.nnz) if spec.name not in constant}
    result = problem.result(packed.nnz)
    numbers = {name: number for number, name in enumerate(operands)} | {result.name: RESULT}
    given = _places("scratch", packed.scratch) | {
        name: ShippedArgument("operand", numbers[name], spec.nbytes)
        for name, spec in (operands | {result.name: result}).items()
    }
    maps: list[ShippedMap] = []
    arguments: list[ShippedArgument] = []
    given |= {name: places.pop(name) for name in constant}
    laid_out = Packed(arrays=places, sizes=packed.sizes, nnz=packed.nnz)
    for argument in launch_arguments(family, problem, config, laid_out, given):
        match argument:
            case TensorMap():
                arguments.append(ShippedArgument("map", len(maps)))
                maps.append(ShippedMap(numbers[argument.array], argument, DATA_TYPES[argument.dtype]))
            case int():
                arguments.append(ShippedArgument("size", argument))
            case ShippedArgument():
                arguments.append(argument)
            case _:
                raise AssertionError(f"a parameter of a linear layer without a place: {argument!r}")
    return ShippedLaunch(
        problem=problem,
        family=family.name,
        config=config.to_dict(),
        entry=bound.compiled.kernel.entry,
        targets=tuple(_target(bound, device) for device in devices),
        arguments=tuple(arguments),
        maps=tuple(maps),
        scratch_bytes=_end(given[name] for name in packed.scratch),
        weight=weight,
    )


def _is_of_linear_layer(problem: SpmmProblem | QuantizedSpmmProblem) -> bool:
    return problem.layout is Layout.COLUMN and problem.batch == 1 and not problem.epilogue.has_residual


def _target(bound: BoundVariant, device: Device) -> ShippedTarget:
    """The variant compiled for a device, and its launch there."""
    rendered = bound.compiled.rendered
    family, config, problem = rendered.family, rendered.config, rendered.problem
    is_emulated = device.backend == "emulator"
    capability = 0 if is_emulated else 10 * device.compute_capability[0] + device.compute_capability[1]
    broken = [c.sentence for c in family.constraints(problem, config, device) if not c.holds]
    if broken:
        raise ConfigError(
            f"{family.name} {config} was chosen here for {problem} and cannot run on {device.name}: {broken[0]}; "
            f"ship the model from such a GPU, or without --arch {device.name}"
        )
    if device == bound.executor.device:
        compiled = bound.compiled.kernel
    else:
        toolchain = backends.toolchain(device)
        compiled = toolchain.compile(family.name, family.entry, rendered.source)
    launch = family.launch(problem, config, bound.packed.sizes, device)
    return ShippedTarget(capability, compiled.read(), compiled.digest, launch)


def _places(source: str, sizes: Mapping[str, int]) -> dict[str, ShippedArgument]:
    """Places of some parts, one behind the other."""
    found: dict[str, ShippedArgument] = {}
    for name, nbytes in sizes.items():
        found[name] = ShippedArgument(source, _end(found.values()), nbytes)
    return found


def _end(places: Iterable[ShippedArgument]) -> int:
    """Bytes of some parts one behind the other."""
    return sum(round_up(max(1, place.nbytes), ALIGNMENT) for place in places)


def _behind_one_another(arrays: Mapping[str, Array]) -> tuple[dict[str, ShippedArgument], Array]:
    """Arrays of bytes as one array, and where each lies in it."""
    places = _places("packed", {name: array.nbytes for name, array in arrays.items()})
    found = np.zeros(_end(places.values()), dtype=np.uint8)
    for name, place in places.items():
        found[place.value : place.value + place.nbytes] = arrays[name]
    return places, found
