"""A recorded search as an Optuna study in a storage, for optuna-dashboard and `optuna.visualization`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage

from sparsegen import kernels
from sparsegen.errors import DatabaseError
from sparsegen.kernels.base import Device
from sparsegen.tuning.samplers.study import Parameters, time_us
from sparsegen.tuning_db.records import Measurement, Variant, Workload

MARK = "sparsegen_workload"  # an attribute of the studies that are written here, and may be replaced
SHORT = 12  # digits of a fingerprint in a name


@dataclass(frozen=True, slots=True)
class RecordedStudy:
    """A study that was written.

    Attributes:
        left_out: measurements of families or values that are not installed.
    """

    name: str
    trials: int
    left_out: int


def study_name(workload: Workload, device: Device) -> str:
    """The same for one workload on one device."""
    return f"{workload.problem}, {workload.fingerprint[:SHORT]}, {device.key}"


def open_storage(url: str) -> BaseStorage:
    """Optuna's storage at a URL such as ``sqlite:///studies.db``.

    Raises:
        DatabaseError: it cannot be opened, or the driver is missing. The message holds no URL: it may have a password.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if "://" not in url:
        raise DatabaseError(f"a storage is a URL, as in sqlite:///{url}")
    try:
        return optuna.storages.get_storage(url)
    except Exception as error:  # SQLAlchemy's, a driver's, Optuna's
        reason = str(error.__cause__ or error).partition("\n")[0].replace(url, "its URL")
        raise DatabaseError(f"the storage cannot be opened: {reason}") from error


def write(
    storage: BaseStorage,
    workload: Workload,
    device: Device,
    measurements: Iterable[Measurement],
    progress: Callable[[int, int], None] = lambda written, trials: None,
) -> RecordedStudy:
    """Write what was recorded of a workload as a study, in the order in which it was measured.

    Each measurement of the search is a trial. The times of finalists are no trials of their own, but attributes of the
    variant's last one (``final_us``). A study that was written before is replaced.

    Args:
        progress: told how many trials are written, of how many.

    Raises:
        DatabaseError: the storage holds another study of this name, or fails.
    """
    recorded = list(measurements)
    known = [m for m in recorded if m.variant.config.is_known]
    left_out = len(recorded) - len(known)
    name = study_name(workload, device)
    try:
        _remove(storage, name)
        study = optuna.create_study(storage=storage, study_name=name)
        for key, value in _facts(workload, device).items():
            study.set_user_attr(key, value)
        families = kernels.families_of(workload.problem.operator)
        parameters = Parameters(f.config_type for f in families)
        trials = _trials(known)
        for number, (m, final_us) in enumerate(trials, 1):
            trial = parameters.trial(m)
            if final_us is not None:
                trial.set_user_attr("final_us", final_us)
            study.add_trial(trial)
            progress(number, len(trials))
    except StorageInternalError as error:
        raise DatabaseError(f"the storage failed: {str(error).partition(chr(10))[0]}") from error
    return RecordedStudy(name, len(trials), left_out)


def _remove(storage: BaseStorage, name: str) -> None:
    if name not in optuna.get_all_study_names(storage):
        return
    if MARK not in optuna.load_study(study_name=name, storage=storage).user_attrs:
        raise DatabaseError(
            f"the storage holds a study {name!r} that sparsegen did not write: take another one"
        )
    optuna.delete_study(study_name=name, storage=storage)


def _facts(workload: Workload, device: Device) -> dict[str, object]:
    return {
        MARK: workload.fingerprint,
        "operator": workload.problem.operator,
        "problem": workload.problem.to_dict(),
        "device": device.name,
        "nonzeros": workload.features.nnz,
    }


def _trials(measurements: Iterable[Measurement]) -> list[tuple[Measurement, float | None]]:
    """Returns each trial with its time among the finalists, if it has one; a variant with finals only has one trial."""
    by_variant: dict[Variant, list[Measurement]] = {}
    for m in measurements:
        by_variant.setdefault(m.variant, []).append(m)
    found: list[tuple[Measurement, float | None]] = []
    for mine in by_variant.values():
        finals = [m for m in mine if m.final]
        *earlier, last = [m for m in mine if not m.final] or finals[-1:]
        found += [(m, None) for m in earlier]
        found.append((last, time_us(finals[-1]) if finals else None))
    return sorted(found, key=lambda trial: trial[0].measured_at)
