"""Takes a job's result into a database, after all of it was held against its bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparsegen.errors import BundleError
from sparsegen.tuning.jobs.bundle import open_bundle
from sparsegen.tuning.jobs.results import Head, read_result
from sparsegen.tuning_db.foreign_devices import require_known_facts

if TYPE_CHECKING:
    from sparsegen.tuning_db.store import Added, Store


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of an import.

    Attributes:
        is_cut_off: true if the file ended in a part of a line, as a run that was killed leaves it; it was passed over.
    """

    head: Head
    added: Added
    is_cut_off: bool


def import_result(store: Store, result: Path, bundle: Path) -> Imported:
    """Check the whole result, then add what is not there yet, all or nothing.

    Raises:
        BundleError: the result or the bundle is damaged, they do not belong together, or the result holds what cannot
            be; nothing is imported.
        DatabaseError: the database cannot be written.
    """
    with open_bundle(bundle) as opened:
        opened.verify()
        found = read_result(result, opened)
    require_known_facts(store, [found.head.device], result, BundleError)
    content = found.content
    added = store.add_all(content.measurements, content.baselines, content.rates)
    return Imported(found.head, added, found.is_cut_off)
