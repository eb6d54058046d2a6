"""What is wrong with a database: damage, and records that this sparsegen would never write."""

from __future__ import annotations

from sparsegen.errors import ConfigError, DatabaseError
from sparsegen.kernels import families
from sparsegen.tuning_db.records import Variant
from sparsegen.tuning_db.store import Store


def is_known(variant: Variant) -> bool:
    """Whether the installed families declare this config: others cannot be dispatched, nor exported."""
    known = families().get(variant.family)
    if known is None:
        return False
    try:
        known.config(**variant.config_dict)
    except ConfigError:
        return False
    return True


def check(store: Store) -> list[str]:
    """Everything wrong with a database, in words; empty when nothing is."""
    if problems := store.damage():
        return problems
    try:
        strangers = store.unknown_problems()
        variants = {m.variant for m in store.all_measurements()}
    except DatabaseError as error:
        return [str(error)]
    unknown = [v for v in variants if not is_known(v)]
    return [
        *(f"problem {p.row}: {p.why}; its {p.measurements} measurements are passed over" for p in strangers),
        *(f"{v.family} {v.config_dict}: no installed family declares it; never dispatched" for v in unknown),
    ]
