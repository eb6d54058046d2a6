"""Tunes a row before it is measured, unless its tuning was finished earlier."""

from __future__ import annotations

from sparsegen.bench.parcel import Parcel
from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.family import Device
from sparsegen.settings import Settings
from sparsegen.tuner import Budget, Effort, tune
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.store import Store

OFF = "off"
EFFORTS = (Effort.QUICK, Effort.NORMAL)


def budget_of(word: str) -> Budget | None:
    """The budget that ``--tune`` names: ``off`` (None), an effort, or seconds.

    Raises:
        ConfigError: it is none of them.
    """
    if word == OFF:
        return None
    if word in EFFORTS:
        return Budget(effort=Effort(word))
    try:
        return Budget(seconds=float(word))
    except ValueError:
        raise ConfigError(f"--tune {word}: give {OFF}, {', '.join(EFFORTS)}, or seconds") from None


def ensure_tuned(parcel: Parcel, device: Device, db: str | None, budget: Budget) -> str | None:
    """Tune the row's workload if no finalist is recorded for it; why there is no result, or None.

    Raises:
        KeyboardInterrupt: Ctrl-C; what was measured is recorded.
        DatabaseError: the database cannot be used.
    """
    workload = Workload(parcel.task.problem, parcel.fingerprint, parcel.features)
    with Store.open(db or Settings.from_environment().db) as store:
        if any(m.final for m in store.measurements(workload, device)):
            return None
        try:
            result = tune(
                parcel.matrix(),
                workload.problem,
                device=device,
                store=store,
                budget=budget,
                baselines=False,
            )
        except NoVariantError as error:
            return str(error)
        if result.was_interrupted:
            raise KeyboardInterrupt
    return None
