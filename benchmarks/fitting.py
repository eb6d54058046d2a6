"""Fits the cost model to measurements: ridge regression of the log of the measured over the analytic time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.system.numpy_types import Array
from sparsegen.tuning.prediction.model import CostModel, difference_from
from sparsegen.tuning.prediction.terms import Described, Resources
from sparsegen.tuning_db.records import Workload

PENALTY = 5.0  # factor of a squared coefficient, for terms of unit variance and a family's own ones alike
PARTS = 10  # parts that are left out in turn, to learn the error of unlike configs


@dataclass(frozen=True, slots=True)
class Known:
    """A variant that was measured.

    Attributes:
        time_us: its measured time.
        slowdown: its time over the fastest one's on the same workload: the less it matters.
        resources: resources of its compiled code; None if not known.
    """

    workload: Workload
    device: Device
    config: Config
    time_us: float
    slowdown: float
    resources: Resources | None
    described: Described


def known(
    measured: Iterable[tuple[Workload, Device, Config, float, Resources | None]], usual_registers: int
) -> list[Known]:
    """Measured variants with all that the model sees of them.

    Args:
        measured: workload, device, config, microseconds and, where it is known, compiled code of each.
        usual_registers: registers of a thread, if the code is not known.
    """
    listed = list(measured)
    best: dict[Hashable, float] = defaultdict(lambda: math.inf)
    for workload, device, _, time_us, _ in listed:
        best[workload, device.key] = min(best[workload, device.key], time_us)
    return [
        Known(
            workload,
            device,
            config,
            time_us,
            time_us / best[workload, device.key],
            resources,
            Described.of(workload, config, device, resources, usual_registers),
        )
        for workload, device, config, time_us, resources in listed
    ]


def usual_registers(resources: Iterable[Resources]) -> int:
    """The geometric mean."""
    logs = [math.log(max(1, r.registers)) for r in resources]
    return round(math.exp(math.fsum(logs) / len(logs)))


def fit(variants: Sequence[Known], usual_registers: int) -> CostModel:
    """The coefficients, and what configs take that are unlike those that were fitted to.

    Args:
        variants: variants of several workloads.
    """
    design = _Design.of(variants)
    everything = np.ones(len(variants), dtype=bool)
    unlike = _unlike(variants, design)
    return design.model(design.solve(everything), unlike, usual_registers)


def fit_without(
    variants: Sequence[Known], usual_registers: int, is_left_out: Callable[[Known], bool]
) -> CostModel:
    """`fit` to all but some variants."""
    return fit([v for v in variants if not is_left_out(v)], usual_registers)


@dataclass(frozen=True, slots=True, eq=False)
class _Design:
    """The regression's matrices.

    Attributes:
        general, own: the columns' names; of ``own`` with the family's.
        means, scales: statistics of the general terms: columns are centred and have unit variance.
        columns: float64 [variants, terms], each times its variant's share.
        logs: logs of the measured over the analytic times. ``weights``: weights of the variants.
    """

    general: list[str]
    own: list[tuple[str, str]]
    means: Array
    scales: Array
    columns: Array
    logs: Array
    weights: Array

    @classmethod
    def of(cls, variants: Sequence[Known]) -> _Design:
        general = list(dict.fromkeys(name for v in variants for name in v.described.general))
        own = list(dict.fromkeys((v.described.family, name) for v in variants for name in v.described.own))
        table = np.array([[v.described.general.get(n, np.nan) for n in general] for v in variants])
        means = np.nanmean(table, axis=0)
        scales = np.nanstd(table, axis=0)
        scales[scales < 1e-9] = 1.0
        centred = np.nan_to_num((table - means) / scales)  # unknown values count as average
        places = {key: i for i, key in enumerate(own)}
        of_families = np.zeros((len(variants), len(own)))
        for row, v in enumerate(variants):
            for name, value in v.described.own.items():
                of_families[row, places[v.described.family, name]] = value
        shares = np.array([v.described.share for v in variants])
        ones = np.ones((len(variants), 1))
        logs = np.log([v.time_us / v.described.analytic_us for v in variants])
        weights = 1 / np.array([v.slowdown for v in variants])
        columns = np.hstack((centred, ones, of_families)) * shares[:, None]
        return cls(general, own, means, scales, columns, logs, weights)

    def solve(self, used: Array) -> Array:
        """The coefficients by the variants that are used (bool [variants])."""
        x, y, w = self.columns[used], self.logs[used], self.weights[used]
        products = (x * w[:, None]).T @ x
        products[np.diag_indices_from(products)] += PENALTY
        found: Array = np.linalg.solve(products, (x * w[:, None]).T @ y)
        return found

    def model(self, coefficients: Array, unlike: float, usual_registers: int) -> CostModel:
        count = len(self.general)
        slopes = coefficients[:count] / self.scales
        constant = float(coefficients[count] - slopes @ self.means)
        families: dict[str, dict[str, float]] = defaultdict(dict)
        for (family, name), weight in zip(self.own, coefficients[count + 1 :].tolist(), strict=True):
            families[family][name] = _rounded(weight)
        return CostModel(
            general={name: _rounded(slope) for name, slope in zip(self.general, slopes.tolist(), strict=True)}
            | {"": _rounded(constant)},
            usual={
                name: _rounded(mean) for name, mean in zip(self.general, self.means.tolist(), strict=True)
            },
            families=dict(families),
            unlike=_rounded(unlike),
            usual_registers=usual_registers,
        )


def _unlike(variants: Sequence[Known], design: _Design) -> float:
    """Slope of the error of a log with the difference from the configs that a model was fitted to; at least 0.

    It is cross-validated: each part of the configs is left out in turn, a whole region of the tuning space with it.
    """
    configs = list(dict.fromkeys(v.config for v in variants))
    apart: dict[Config, float] = {}  # distance of each config from those of its family in other parts
    for name in {config.family_name for config in configs}:
        mine = [config for config in configs if config.family_name == name]
        for part in {_part(config) for config in mine}:
            inside = [config for config in mine if _part(config) == part]
            outside = [config for config in mine if _part(config) != part]
            apart |= dict(zip(inside, difference_from(outside, inside), strict=True))
    parts = np.array([_part(v.config) for v in variants])
    errors = np.zeros(len(variants))
    for part in np.unique(parts).tolist():
        out = parts == part
        if not out.all():
            errors[out] = np.abs(design.logs - design.columns @ design.solve(~out))[out]
    distances = np.array([apart[v.config] * v.described.share for v in variants])
    spread = distances - distances.mean()
    return max(0.0, float(spread @ errors / max(1e-9, spread @ spread)))


def _part(config: Config) -> int:
    """Equal for configs that are equal in all but their last few tunables, so that neighbours go together."""
    values = [str(value) for value in config.to_dict().values()]
    return sum(map(ord, "".join(values[: max(1, len(values) // 2)]))) % PARTS


def _rounded(value: float) -> float:
    """Six digits: what is written is what is computed with."""
    return float(f"{value:.6g}")
