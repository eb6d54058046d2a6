"""What is wrong with a database: damage, and records that this sparsegen would never write."""

from __future__ import annotations

from sparsegen.errors import DatabaseError
from sparsegen.tuning_db.store import Store


def check(store: Store) -> list[str]:
    """Everything wrong with a database, in words; empty when nothing is."""
    if problems := store.damage():
        return problems
    try:
        strangers = store.unknown_problems()
        variants = dict.fromkeys(m.variant for m in store.all_measurements())
    except DatabaseError as error:
        return [str(error)]
    unknown = [v for v in variants if not v.config.is_known]
    return [
        *(f"problem {p.row}: {p.why}; its {p.measurements} measurements are passed over" for p in strangers),
        *(f"{v.config}: no installed family declares it; never dispatched" for v in unknown),
    ]
