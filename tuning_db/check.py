"""Check of a database: damage, and records that this sparsegen would never write."""

from __future__ import annotations

from sparsegen.errors import DatabaseError
from sparsegen.kernels import is_of_operator
from sparsegen.tuning_db.store import Store


def check(store: Store) -> list[str]:
    """Everything wrong with a database, in words; empty when nothing is."""
    if problems := store.damage():
        return problems
    try:
        strangers = store.unknown_problems()
        measured = store.all_measurements()
        store.all_baselines()
        store.all_rates()
        store.all_predictions()
        store.all_probes()
        store.all_checks()
    except DatabaseError as error:
        return [str(error)]
    unknown = dict.fromkeys(m.variant for m in measured if not m.variant.config.is_known)
    tried = dict.fromkeys(
        (m.variant.config, m.workload.problem.operator) for m in measured if m.variant.config.is_known
    )
    known = {f"problem {p.row}" for p in strangers}
    return [
        *(f"{row}: {why}; it is passed over" for row, why in store.passed_over.items() if row not in known),
        *(f"problem {p.row}: {p.why}; its {p.measurements} measurements are passed over" for p in strangers),
        *(f"{v.config}: no installed family declares it; never dispatched" for v in unknown),
        *(
            f"{config}: measured on {operator}, which it does not compute"
            for config, operator in tried
            if not is_of_operator(config, operator)
        ),
    ]
