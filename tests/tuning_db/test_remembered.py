"""Layers that are asked each question once."""

from __future__ import annotations

from collections import Counter
from functools import wraps
from typing import Any

from database_samples import RECORDS
from tuning_samples import H100, baseline, timed, workload

from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.remembered import MOST_ANSWERS, Remembered, no_answers

QUESTIONS = ("measurements", "baselines", "predictions", "probes")


class Counting(MemoryLayer):
    """Counts what it is asked."""

    def __init__(self, *records: Any) -> None:
        super().__init__(*records)
        self.asked: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in (*QUESTIONS, "rates", "failed_checks", "list_workloads"):
            return found

        @wraps(found)
        def counted(*asked: Any, **named: Any) -> Any:
            self.asked[name] += 1
            return found(*asked, **named)

        return counted


def ask_all(layer: MemoryLayer | Remembered) -> list[Any]:
    of = [workload(), workload(n=128, tag="b"), workload(tag="none")]
    found = [getattr(layer, question)(each, H100) for question in QUESTIONS for each in of]
    kinds = [None, of[0].problem.kind]
    return [*found, layer.rates(H100), layer.failed_checks(H100)] + [
        layer.list_workloads(kind=kind, like=H100) for kind in kinds
    ]


def test_each_question_is_asked_once() -> None:
    layer = Counting(RECORDS.measurements, RECORDS.baselines)
    remembered = Remembered(layer)
    said = ask_all(MemoryLayer(RECORDS.measurements, RECORDS.baselines))
    assert [ask_all(remembered) for _ in range(3)] == [said] * 3
    once = dict.fromkeys(QUESTIONS, 3) | {"rates": 1, "failed_checks": 1, "list_workloads": 2}
    assert layer.asked == once


def test_nobody_changes_what_is_kept() -> None:
    remembered = Remembered(MemoryLayer([timed(1.0)], [baseline(2.0)]))
    remembered.measurements(workload(), H100).clear()
    remembered.list_workloads().clear()
    assert len(remembered.measurements(workload(), H100)) == len(remembered.list_workloads()) == 1


def test_the_memory_has_an_end() -> None:
    answers = no_answers()
    remembered = Remembered(MemoryLayer([], []), answers)
    for n in range(1, MOST_ANSWERS + 10):
        remembered.probes(workload(n=n), H100)
    assert len(answers) < MOST_ANSWERS
