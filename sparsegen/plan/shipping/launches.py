"""A bound variant as a shipped library has it: its binaries, its parameters, and the packed matrix as one array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen import backends
from sparsegen.backends.cuda.tensor_maps import DATA_TYPES
from sparsegen.errors import ConfigError, OperandError
from sparsegen.kernels.base import Device, cuda_architecture
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.operators import Problem, TensorSpec
from sparsegen.plan.binding import BoundVariant, launch_arguments
from sparsegen.plan.variant_launcher import VariantLauncher
from sparsegen.system.integers import round_up
from sparsegen.system.numpy_types import Array

ALIGNMENT = 256  # bytes of what lies behind one another, as of device memory
RESULT = -1  # in the place of an operand's number, as in launch.h; further results count down


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
    """A tensor map, and the number of its array among the operands, or from `RESULT` down among the results."""

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
    """A problem that is computed with operands of each call, such as the product of a linear layer for some tokens.

    Attributes:
        entry: name of the kernel function.
        targets: one for each architecture.
        operands, results: what calls bring and get, in order.
        scratch_bytes: bytes of all scratch memory, one part behind the other.
        packed: uint8: the packed arrays and the operands that are kept, one behind the other.
    """

    problem: Problem
    family: str
    config: Mapping[str, object]
    entry: str
    targets: tuple[ShippedTarget, ...]
    operands: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    arguments: tuple[ShippedArgument, ...]
    maps: tuple[ShippedMap, ...]
    scratch_bytes: int
    packed: Array


def architecture_of(device: Device) -> str:
    """Name of the architecture of a device's kernels, such as ``sm_90a``; ``cpu`` for the emulator's."""
    return "cpu" if device.backend == "emulator" else cuda_architecture(device.compute_capability)


def shipped_launch(launcher: VariantLauncher, devices: Sequence[Device]) -> ShippedLaunch:
    """The launch of a variant, for devices that need not be here.

    Args:
        devices: one of each architecture.

    Raises:
        ConfigError: the variant cannot run on one of them.
        OperandError: a result that is written in parts.
        CompileError, DeviceUnavailableError: see `Toolchain.compile`.
    """
    bound = launcher.prepared
    rendered, packed = bound.compiled.rendered, bound.packed
    family, config, problem = rendered.family, rendered.config, rendered.problem
    if bound.result.is_updated:
        raise OperandError(f"{problem}: a result that is written in parts cannot be shipped")
    written = tuple(spec for spec in bound.operands if spec.is_written)
    read = [spec for spec in bound.operands if not spec.is_written]
    kept = {spec.name: launcher.kept_operand(spec.name) for spec in read}
    operands = tuple(spec for spec in read if kept[spec.name] is None)
    results = (bound.result, *written)
    own = {name: _bytes_of(array) for name, array in kept.items() if array is not None}
    places, together = _behind_one_another(bound.downloaded() | own)
    numbers = {spec.name: number for number, spec in enumerate(operands)}
    numbers |= {spec.name: RESULT - number for number, spec in enumerate(results)}
    given = _places("scratch", packed.scratch) | {name: places[name] for name in own}
    given |= {
        spec.name: ShippedArgument("operand", numbers[spec.name], spec.nbytes)
        for spec in (*operands, *results)
    }
    maps: list[ShippedMap] = []
    arguments: list[ShippedArgument] = []
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
                raise AssertionError(f"a parameter of {family.name} without a place: {argument!r}")
    return ShippedLaunch(
        problem=problem,
        family=family.name,
        config=config.to_dict(),
        entry=bound.compiled.kernel.entry,
        targets=tuple(_target(bound, device) for device in devices),
        operands=operands,
        results=results,
        arguments=tuple(arguments),
        maps=tuple(maps),
        scratch_bytes=_end(given[name] for name in packed.scratch),
        packed=together,
    )


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


def _bytes_of(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _behind_one_another(arrays: Mapping[str, Array]) -> tuple[dict[str, ShippedArgument], Array]:
    """Arrays of bytes as one array, and where each lies in it."""
    places = _places("packed", {name: array.nbytes for name, array in arrays.items()})
    found = np.zeros(max(ALIGNMENT, _end(places.values())), dtype=np.uint8)
    for name, place in places.items():
        found[place.value : place.value + place.nbytes] = arrays[name]
    return places, found
