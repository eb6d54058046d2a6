"""The cost model: a family's analytic time, corrected by what a variant's launch, code and tunables say.

    time = analytic · exp(share · (Σ general coefficients · terms + Σ the family's own · terms + unlike · difference))

``share`` is what the launch alone does not take of the analytic time, ``difference`` how much the config differs from
all that were ever measured. By as much as the model's error grows with it a config is taken to be slower: of many
estimates the fastest is the one that errs most. Coefficients are fitted by ``python -m benchmarks.cost_model fit`` and
stand in ``cost_model.json``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.kernels.similarity import differences
from sparsegen.operators import Problem, SpmmProblem
from sparsegen.system.json_object import Json
from sparsegen.tuning.prediction.terms import Described, Resources
from sparsegen.tuning_db.records import Workload

FILE = Path(__file__).with_name("cost_model.json")
FARTHEST = 2.0  # difference of configs beyond which nothing more is learned
STEEPEST = 2.0  # log of a correction: no family's own estimate is taken to be farther off


@dataclass(frozen=True, slots=True)
class CostModel:
    """The coefficients of the terms.

    Attributes:
        general: coefficients of the terms that mean the same for all families; the last one, of ``""``, is the
            constant.
        usual: the means of those terms, which stand in for what is not known of a variant.
        families: coefficients of each family's own terms. A family that was never measured has none.
        unlike: coefficient of the difference from the measured configs.
        usual_registers: registers of a thread, before anything is compiled.
    """

    general: Mapping[str, float]
    usual: Mapping[str, float]
    families: Mapping[str, Mapping[str, float]]
    unlike: float
    usual_registers: int

    @property
    def digest(self) -> str:
        """Name of the coefficients in the database: hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> Json:
        return asdict(self)

    def without(self, family: str) -> CostModel:
        """The model that knows nothing of a family's own terms."""
        return replace(self, families={name: own for name, own in self.families.items() if name != family})

    def corrected_us(self, variant: Described, difference: float = 0.0) -> float:
        """Microseconds that a variant should take.

        Args:
            difference: difference from the nearest measured config of its family.
        """
        general = self.general.get("", 0.0) + sum(
            weight * variant.general.get(name, self.usual[name])
            for name, weight in self.general.items()
            if name
        )
        weights = self.families.get(variant.family, {})
        own = sum(weights.get(name, 0.0) * value for name, value in variant.own.items())
        log = general + own + self.unlike * min(FARTHEST, difference)
        return variant.analytic_us * math.exp(variant.share * max(-STEEPEST, min(STEEPEST, log)))

    def predicted_us(
        self,
        workload: Workload,
        config: Config,
        device: Device,
        resources: Resources | None = None,
        difference: float = 0.0,
    ) -> float:
        """Microseconds that a config should take on a workload, with a cold L2.

        Args:
            resources: resources of its compiled code; None before it is compiled.
        """
        described = Described.of(workload, config, device, resources, self.usual_registers)
        return self.corrected_us(described, difference)


def difference_from(known: Sequence[Config], configs: Sequence[Config]) -> list[float]:
    """Returns the difference of each config from the nearest known one, at most `FARTHEST`."""
    if not known or not configs:
        return [FARTHEST] * len(configs)
    least: list[float] = differences(configs, known).min(axis=1).clip(max=FARTHEST).tolist()
    return least


def orders_configs(problem: Problem) -> bool:
    """True if the model was shown to order the configs of such problems better than chance: a search then uses its
    times.

    On recorded searches of an H100 it saves half of the trials of ``spmm``, and costs as many again of ``sddmm`` and
    ``sparse_softmax`` (docs/internals/samplers.md).
    """
    return isinstance(problem, SpmmProblem)


def expected_times(workload: Workload, configs: Sequence[Config], device: Device) -> list[float]:
    """The microseconds that the packaged model says of each config, where it orders them (`orders_configs`); else none.

    Nor any for the emulator, whose times mean nothing.
    """
    if device.backend == "emulator" or not orders_configs(workload.problem):
        return []
    model = cost_model()
    return [model.predicted_us(workload, config, device) for config in configs]


@cache
def cost_model() -> CostModel:
    """The packaged one."""
    return CostModel(**json.loads(FILE.read_text(encoding="utf-8"))["model"])
