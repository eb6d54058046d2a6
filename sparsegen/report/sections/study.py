"""The search: its history, and the tunables that decided."""

from __future__ import annotations

from collections.abc import Sequence

from sparsegen.report import words
from sparsegen.report.canvas import Chart, Panel
from sparsegen.report.colours import MARKERS, SERIES, Colour
from sparsegen.report.content import Section
from sparsegen.report.kinds import Kind
from sparsegen.report.material import Material
from sparsegen.report.points import by_workload
from sparsegen.report.tables import Table
from sparsegen.tuning.replay.importance import FEWEST_CONFIGS, importances
from sparsegen.tuning_db.records import Measurement, Outcome, Workload

MOST = 3  # studies
MOST_BARS = 12
LEAD = (
    "The searches of the workloads with the most recorded configs: every timed config in the order of measuring, and "
    "the best so far. Below, the tunables' shares in whether a config is among the fastest tenth (PED-ANOVA, "
    "Watanabe et al., IJCAI 2023). A search does not sample evenly, so a share says what decided among the configs "
    "that were tried.",
)


def section(material: Material) -> Section:
    found = studies(material.inputs.measurements)
    charts: list[Chart] = []
    for workload, trials in found[:MOST]:
        charts.append(_history(material, workload, trials))
        for family, shares in importances(trials).items():
            charts.append(_importances(workload, family, shares))
    missing = []
    if not material.inputs.measurements:
        missing.append("The database holds no measurement of this device.")
    elif not found:
        most = max(map(len, _trials(material.inputs.measurements).values()))
        missing.append(
            f"No workload has {FEWEST_CONFIGS} measured configs (the most is {most}): seeds hold only the best "
            "few of each. A database that was tuned into has whole searches."
        )
    return Section("study", "Searches", LEAD, charts=tuple(charts), missing=tuple(missing))


def studies(measurements: Sequence[Measurement]) -> list[tuple[Workload, list[Measurement]]]:
    """Workloads of at least 20 measured configs with their trials in order of time; the largest first.

    Finalists' repeated times are no trials.
    """
    found = [one for one in _trials(measurements).items() if len(one[1]) >= FEWEST_CONFIGS]
    return sorted(found, key=lambda study: -len(study[1]))


def _trials(measurements: Sequence[Measurement]) -> dict[Workload, list[Measurement]]:
    return {
        workload: sorted((m for m in mine if not m.final), key=lambda m: m.measured_at)
        for workload, mine in by_workload(measurements).items()
    }


def _name(workload: Workload) -> str:
    p = workload.problem
    sparsity = words.percent(1 - workload.features.density)
    return f"{Kind.of(p)}, {words.sizes(p)}, {sparsity} zeros"


def _slug(workload: Workload) -> str:
    p = workload.problem
    dense = (f"{name}{p.sizes[name]}" for name in p.dense_sizes)
    return "-".join([p.operator, *p.traits.values(), *dense, workload.fingerprint[:8]])


def best_so_far(trials: Sequence[Measurement]) -> list[tuple[int, float]]:
    """(number of the trial from 1, µs) at each new best, and at the last trial."""
    steps: list[tuple[int, float]] = []
    for number, trial in enumerate(trials, 1):
        if trial.sample is not None and (not steps or trial.sample.median_us < steps[-1][1]):
            steps.append((number, trial.sample.median_us))
    if steps and steps[-1][0] != len(trials):
        steps.append((len(trials), steps[-1][1]))
    return steps


def _history(material: Material, workload: Workload, trials: list[Measurement]) -> Chart:
    timed = [(i, m, m.sample.median_us) for i, m in enumerate(trials, 1) if m.sample is not None]
    families = sorted({m.variant.family for m in trials})
    steps = best_so_far(trials)
    failed = sum(m.outcome is not Outcome.OK for m in trials)

    def draw(panel: Panel) -> None:
        for place, family in enumerate(families):
            mine = [(i, m, us) for i, m, us in timed if m.variant.family == family]
            if mine:
                panel.points(
                    [float(i) for i, _, _ in mine],
                    [us for _, _, us in mine],
                    [f"trial {i}: {words.microseconds(us)}, {_config(m)}" for i, m, us in mine],
                    colour=SERIES[place % len(SERIES)],
                    marker=MARKERS[place % len(MARKERS)],
                    label=family,
                    size=14,
                )
        panel.line(
            [float(i) for i, _ in steps],
            [us for _, us in steps],
            colour=Colour.INK,
            label="best so far",
            steps=True,
        )
        panel.labels("trial", "time, µs")
        panel.log_y(lambda value: f"{value:,.10g}")
        panel.whole_numbers_x()

    best = words.microseconds(steps[-1][1]) if steps else "none"
    told = f"{words.count(len(trials), 'trial')}, {failed} failed, best {best}"
    name = _name(workload)
    rows = tuple(
        (str(i), m.variant.family, _config(m), words.microseconds(us))
        for i, m, us in sorted(timed, key=lambda t: t[2])[:20]
    )
    return Chart(
        name=f"history-{_slug(workload)}",
        title=f"{name}: history",
        caption=f"{material.inputs.device_name}. {told}.",
        alt=f"Scatter plot: time of each trial in order, with the best so far. {told}.",
        draw=draw,
        numbers=Table("The fastest 20", ("trial", "family", "config", "time"), rows, text_columns=3),
    )


def _config(m: Measurement) -> str:
    return m.variant.config.settings


def _importances(workload: Workload, family: str, shares: dict[str, float]) -> Chart:
    names, values = list(shares)[:MOST_BARS], list(shares.values())[:MOST_BARS]

    def draw(panel: Panel) -> None:
        panel.bars(names, values, colour=Colour.BLUE)
        panel.labels("share of the importance", "")
        panel.percent_x()

    told = ", ".join(f"{name} {words.percent(share)}" for name, share in list(shares.items())[:3])
    rows = tuple((name, words.percent(share)) for name, share in shares.items())
    return Chart(
        name=f"importances-{family}-{_slug(workload)}",
        title=f"{family}: what decided",
        caption=f"{_name(workload)}.",
        alt=f"Bar chart of the importances of the tunables of {family}: {told}.",
        draw=draw,
        height=1.2 + 0.24 * len(names),
        numbers=Table("The numbers", ("tunable", "share"), rows),
    )
