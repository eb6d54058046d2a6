"""Terms of the cost model for a variant: its launch on a device, its compiled code, and its tunables.

Terms are logarithms to base 2, so that a coefficient says by what power the time goes with what is counted. General
ones mean the same for every family; a family's own tell its tunables apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sparsegen.backends.cuda.instructions import Instructions
from sparsegen.backends.executor import CompiledKernel
from sparsegen.kernels import family_of
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import REGISTERS_PER_MULTIPROCESSOR, RESERVED_PER_BLOCK
from sparsegen.kernels.rates import architecture
from sparsegen.system.integers import ceil_div, round_up
from sparsegen.tuning_db.records import Workload

WARP = 32
REGISTERS_AT_ONCE = 8  # granularity of a thread's registers: a warp gets a multiple of 256
KIB = 1024
SHORTEST = 1.001  # launches: what no kernel takes less than

Terms = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of compiled code.

    Attributes:
        registers, spill_bytes: for each thread.
        static_shared_bytes: for each block, besides what the launch asks for.
        instructions: counts of the machine code; None without a disassembler.
    """

    registers: int
    spill_bytes: int = 0
    static_shared_bytes: int = 0
    instructions: Instructions | None = None

    @classmethod
    def of(cls, kernel: CompiledKernel, instructions: Instructions | None = None) -> Resources | None:
        """Returns the resources of a compiled kernel; None if the compiler did not report its registers."""
        if kernel.registers is None:
            return None
        return cls(kernel.registers, kernel.spill_bytes or 0, kernel.static_shared_bytes or 0, instructions)


def resident_blocks(launch: Launch, registers: int, static_shared_bytes: int, device: Device) -> int:
    """Blocks that a multiprocessor holds at once (CUDA programming guide, "Multiprocessor Level"), at least 1."""
    known = architecture(device.compute_capability)
    warps = warps_of(launch)
    of_thread = round_up(max(1, registers), REGISTERS_AT_ONCE)
    shared = launch.shared_memory_bytes + static_shared_bytes + RESERVED_PER_BLOCK
    return max(
        1,
        min(
            known.resident_blocks,
            known.resident_warps // warps,
            REGISTERS_PER_MULTIPROCESSOR // (of_thread * WARP * warps),
            device.shared_memory_per_multiprocessor // shared,
        ),
    )


def warps_of(launch: Launch) -> int:
    return max(1, ceil_div(math.prod(launch.block), WARP))


@dataclass(frozen=True, slots=True)
class Described:
    """A variant on a workload and a device, as the cost model takes it.

    Attributes:
        analytic_us: the family's own estimate (`Family.analytic_us`).
        share: fraction of the time beyond the launch: this part of a correction counts.
        general, own: terms by their names; registers, spills, code and slots are there where the code is known.
    """

    family: str
    analytic_us: float
    share: float
    general: Terms
    own: Terms

    @classmethod
    def of(
        cls,
        workload: Workload,
        config: Config,
        device: Device,
        resources: Resources | None,
        usual_registers: int,
    ) -> Described:
        """A variant described for the cost model.

        Args:
            usual_registers: registers of a thread, if the code is not known.
        """
        problem, features, family = workload.problem, workload.features, family_of(config)
        analytic = family.analytic_us(problem, features, config, device)
        launch = family.launch(problem, config, family.expected_sizes(problem, features, config), device)
        launch_us = device.expected_rates.launch_us
        return cls(
            family=family.name,
            analytic_us=analytic,
            share=1 - launch_us / max(analytic, SHORTEST * launch_us),
            general=_general(launch, resources, usual_registers, device),
            own=_own(workload, config),
        )


def _general(launch: Launch, resources: Resources | None, usual_registers: int, device: Device) -> Terms:
    """Occupancy, waves of blocks, and what is taken of a multiprocessor."""
    static = resources.static_shared_bytes if resources else 0
    registers = resources.registers if resources else usual_registers
    warps, blocks = warps_of(launch), max(1, math.prod(launch.grid))
    resident = resident_blocks(launch, registers, static, device)
    waves = blocks / (device.multiprocessors * resident)
    occupancy = math.log2(resident * warps / architecture(device.compute_capability).resident_warps)
    threads = math.log2(warps)
    terms = {
        "occupancy": occupancy,
        "occupancy squared": occupancy**2,
        "last wave": math.log2(math.ceil(waves) / waves) if waves > 1 else 0.0,
        "free places": math.log2(1 / min(1.0, waves)),
        "idle multiprocessors": math.log2(max(1.0, device.multiprocessors / blocks)),
        "waves": math.log2(max(1.0, waves)),
        "warps": threads,
        "warps squared": threads**2,
        "shared memory": math.log2((launch.shared_memory_bytes + static + KIB) / KIB),
    }
    if resources is not None:
        terms |= {
            "registers": math.log2(max(1, resources.registers)),
            "spills": math.log2(1 + resources.spill_bytes),
        }
    if resources is not None and resources.instructions is not None:
        terms["code"] = math.log2(resources.instructions.total)
        slots = resources.instructions.per_product
        if slots is not None:
            terms["slots"] = math.log2(slots)
    return terms


def _own(workload: Workload, config: Config) -> Terms:
    """Numbers as octaves and their squares, words and flags as 1 where they hold; traits of the problem likewise."""
    problem = workload.problem
    terms = {"": 1.0}
    terms |= {
        f"{name}={value}": 1.0 for name, value in problem.traits.items() if not problem.fields[name].near
    }
    for t in config.tunables():
        value = getattr(config, t.name)
        if all(type(choice) is int for choice in t.choices):
            octaves = math.log2(value + 1)
            terms |= {t.name: octaves, f"{t.name} squared": octaves**2 / 4}
        else:
            terms[f"{t.name}={value}"] = 1.0
    return terms
