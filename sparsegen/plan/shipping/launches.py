"""A bound variant as a shipped library has it: its binaries, its parameters, and the packed matrix as one array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen import backends
from sparsegen.backends.cuda.tensor_maps import DATA_TYPES
from sparsegen.errors import ConfigError, OperandError
from sparsegen.kernels.base import Array, Device
from sparsegen.kernels.launch import ArgumentKind, Launch
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.plan.binding import BoundVariant
from sparsegen.system.integers import round_up

ALIGNMENT = 256  # bytes of what lies behind one another, as of device memory
RESULT = -1  # in the place of an operand's number, as in launch.h


@dataclass(frozen=True, slots=True)
class ShippedTarget:
    """How a launch runs on one architecture.

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
    """A parameter of the kernel, by a word of launch.h and its number."""

    source: str
    value: int


@dataclass(frozen=True, slots=True, eq=False)
class ShippedLaunch:
    """The product of a linear layer with a number of tokens.

    Attributes:
        entry: name of the kernel function.
        targets: one for each architecture.
        scratch_bytes: bytes of all scratch memory, one part behind the other.
        weight: uint8: the packed arrays, one behind the other.
    """

    problem: SpmmProblem
    family: str
    config: Mapping[str, object]
    entry: str
    targets: tuple[ShippedTarget, ...]
    arguments: tuple[ShippedArgument, ...]
    maps: tuple[ShippedMap, ...]
    scratch_bytes: int
    weight: Array


def shipped_launch(bound: BoundVariant, devices: Sequence[Device]) -> ShippedLaunch:
    """The launch of a variant, for devices of which none need be here.

    Args:
        devices: one of each architecture.

    Raises:
        ConfigError: the variant cannot run on one of them.
        OperandError: another product than that of a linear layer without a gradient.
        CompileError, DeviceUnavailableError: see `Toolchain.compile`.
    """
    rendered, packed = bound.compiled.rendered, bound.packed
    family, config, problem = rendered.family, rendered.config, rendered.problem
    if not isinstance(problem, SpmmProblem) or not _is_of_linear_layer(problem):
        raise OperandError(f"{problem}: products of linear layers are shipped, and no others yet")
    offsets, weight = _behind_one_another(bound.downloaded())
    scratch, scratch_bytes = _places(packed.scratch)
    operands = [spec.name for spec in problem.operands(packed.nnz)]
    maps: list[ShippedMap] = []

    def argument(kind: ArgumentKind, name: str) -> ShippedArgument:
        match kind:
            case ArgumentKind.TENSOR_MAP:
                made = family.tensor_map(problem, config, name)
                array = operands.index(made.array) if made.array in operands else RESULT
                maps.append(ShippedMap(array, made, DATA_TYPES[made.dtype]))
                return ShippedArgument("map", len(maps) - 1)
            case ArgumentKind.SIZE:
                known = packed.sizes[name] if name in packed.sizes else int(getattr(problem, name))
                return ShippedArgument("size", int(known))
            case ArgumentKind.PACKED:
                return ShippedArgument("packed", offsets[name])
            case ArgumentKind.SCRATCH:
                return ShippedArgument("scratch", scratch[name])
            case ArgumentKind.OPERAND:
                return ShippedArgument("operand", operands.index(name))
            case ArgumentKind.RESULT:
                return ShippedArgument("operand", RESULT)

    arguments = tuple(argument(one.kind, one.name) for one in family.arguments(problem))
    return ShippedLaunch(
        problem=problem,
        family=family.name,
        config=config.to_dict(),
        entry=bound.compiled.kernel.entry,
        targets=tuple(_target(bound, device) for device in devices),
        arguments=arguments,
        maps=tuple(maps),
        scratch_bytes=scratch_bytes,
        weight=weight,
    )


def _is_of_linear_layer(problem: SpmmProblem) -> bool:
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


def _places(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Where each of some parts begins behind the others, and the bytes of all."""
    found, end = {}, 0
    for name, nbytes in sizes.items():
        found[name] = end
        end += round_up(max(1, nbytes), ALIGNMENT)
    return found, end


def _behind_one_another(arrays: Mapping[str, Array]) -> tuple[dict[str, int], Array]:
    """Arrays of bytes as one array, and where each begins in it."""
    places, nbytes = _places({name: array.nbytes for name, array in arrays.items()})
    found = np.zeros(nbytes, dtype=np.uint8)
    for name, array in arrays.items():
        found[places[name] : places[name] + array.nbytes] = array
    return places, found
