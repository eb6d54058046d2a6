"""The first configs of a search: dispatch's choice, those of similar workloads, heuristic configs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparsegen.dispatch import neighbours
from sparsegen.kernels import family_of
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.layers import Layers
from sparsegen.tuning_db.ranking import predicted as predicted_first
from sparsegen.tuning_db.ranking import ranked
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.seeds_reader import seeds

FROM_PREDICTED = 8  # configs that were predicted to be the fastest here
FROM_SEEDS = 2  # configs that were measured on the same workload elsewhere
FROM_NEIGHBOURS = 6  # configs that similar workloads suggest
MORE_FROM_NEIGHBOURS = 12  # for cores that would wait for the list of candidates


def first_to_try(
    workload: Workload, device: Device, known: Layer, families: Sequence[AnyFamily]
) -> list[Config]:
    """Returns the configs that a search begins with; without repeats.

    What dispatch would take comes first, so that tuning does not end with something slower: what was predicted for this
    device, the fastest of the packaged seeds on this very workload, or what is expected to be the fastest after similar
    workloads, in the store and the seeds. Then come the heuristic config of the most promising family, which may know
    more than the seeds; what else was good on this and on similar workloads; the other heuristic configs; what was
    published; and more that was good on similar workloads, which keeps cores busy until the candidates are listed.
    """
    problem, features = workload.problem, workload.features

    def suited(candidates: Iterable[Config]) -> list[Config]:
        return [c for c in candidates if family_of(c).suits(problem, features, c, device)]

    packaged = suited(_packaged(workload, device, families))
    most = FROM_NEIGHBOURS + MORE_FROM_NEIGHBOURS
    similar = suited(similar_configs(workload, device, known, families, most=most))
    promising = sorted(families, key=lambda f: f.predicted_us(problem, features, device))
    heuristics = suited(
        config for family in promising for config in family.proposals(problem, features, device)
    )
    published = suited(config for f in promising for config in f.published(problem))
    predicted = suited(_predicted(workload, device, known, families))
    parts = (
        predicted[:1], packaged[:1], similar[:1], heuristics[:1],
        predicted[1:], packaged[1:], similar[1:FROM_NEIGHBOURS], heuristics[1:], published, similar[FROM_NEIGHBOURS:],
    )  # fmt: skip
    return list(dict.fromkeys(config for part in parts for config in part))


def with_todays(
    config: Config, first: list[Config], workload: Workload, device: Device, families: Sequence[AnyFamily]
) -> list[Config]:
    """The winner of before in front, where it is still one that may be tried."""
    if not config.is_known or family_of(config) not in families:
        return first
    if not family_of(config).suits(workload.problem, workload.features, config, device):
        return first
    return list(dict.fromkeys((config, *first)))


def _predicted(
    workload: Workload, device: Device, known: Layer, families: Sequence[AnyFamily]
) -> list[Config]:
    """Returns the few configs that `sparsegen tune --for` predicted to be the fastest, so that they are checked."""
    found = (p.variant.config for p in predicted_first(known.predictions(workload, device)))
    return [config for config in found if config.is_known and family_of(config) in families][:FROM_PREDICTED]


def _packaged(workload: Workload, device: Device, families: Sequence[AnyFamily]) -> list[Config]:
    """The fastest few of the packaged seeds on this very workload, best first."""
    found = dict.fromkeys(r.variant.config for r in ranked(seeds().measurements(workload, device)))
    return [config for config in found if config.is_known and family_of(config) in families][:FROM_SEEDS]


def similar_configs(
    workload: Workload,
    device: Device,
    known: Layer,
    families: Sequence[AnyFamily],
    *,
    most: int = FROM_NEIGHBOURS,
) -> list[Config]:
    """Returns configs that were good on similar workloads, in the store and the packaged seeds, best first."""
    problem, features = workload.problem, workload.features

    def is_allowed(config: Config) -> bool:
        family = family_of(config)
        return family in families and family.suits(problem, features, config, device)

    layers = Layers([known, seeds()])
    others = [t for t in layers.list_workloads(kind=problem.kind, like=device) if t.workload != workload]
    return neighbours.similar_configs(workload, device, layers, others, is_allowed)[:most]
