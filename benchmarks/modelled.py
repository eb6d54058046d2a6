"""Made-up times of real spaces, for trying out samplers where nothing was measured: they say nothing of any GPU.

A config's time comes from its launch: how many blocks a multiprocessor holds by threads, registers and shared memory,
how well that hides latency, and in how many waves the blocks run. On top lie effects of tunables and of pairs of them,
drawn by a seed, and noise.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence

import numpy as np

from benchmarks.recording import Recording, Tried
from sparsegen.kernels import family_of
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.tuning_db.records import Outcome, Workload

THREADS, REGISTERS, BLOCKS = 2048, 65536, 32  # of a multiprocessor
LAUNCH_US, BLOCK_US = 2.0, 0.15
LATENCY = 0.25  # occupancy at which half of the rate is reached
EFFECT, INTERACTION, NOISE = 0.10, 0.06, 0.01  # of log time, standard deviations


def modelled(
    name: str, configs: Sequence[Config], problem: Problem, matrix: CsrMatrix, device: Device
) -> Recording:
    """A recording of made-up times, the same on every machine."""
    workload = Workload.of(problem, matrix)
    flop = problem.cost(matrix.nnz).flop
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    packed: dict[tuple[object, ...], dict[str, int]] = {}
    effects: dict[tuple[object, ...], float] = {}

    def effect(key: tuple[object, ...], deviation: float) -> float:
        if key not in effects:
            effects[key] = deviation * rng.normal()
        return effects[key]

    tried = []
    for config in configs:
        family = family_of(config)
        key = (family.name, *family.packing_key(problem, config))
        if key not in packed:
            packed[key] = dict(family.pack(problem, config, matrix).sizes)
        launch = family.launch(problem, config, packed[key], device)
        threads, blocks = math.prod(launch.block), math.prod(launch.grid)
        registers = int(config.to_dict().get("registers", 64))
        held = min(
            THREADS // threads,
            REGISTERS // (registers * threads),
            device.shared_memory_per_multiprocessor // max(1, launch.shared_memory_bytes),
            BLOCKS,
        )
        if held < 1:
            tried.append(Tried(config, Outcome.CRASHED, None))
            continue
        occupancy = held * threads / THREADS
        rate = 100e6 * occupancy / (occupancy + LATENCY) / device.multiprocessors  # of one, in FLOP/µs
        waves = math.ceil(blocks / (held * device.multiprocessors))
        time_us = LAUNCH_US + waves * (held * flop / blocks / rate + BLOCK_US)
        pairs = config.key[1]
        log = sum(effect((family.name, p), EFFECT) for p in pairs)
        log += sum(effect((family.name, p, q), INTERACTION) for p, q in itertools.combinations(pairs, 2))
        tried.append(Tried(config, Outcome.OK, time_us * math.exp(log + NOISE * rng.normal()), registers, 0))
    return Recording(name, workload, device, tuple(tried), is_modelled=True)
