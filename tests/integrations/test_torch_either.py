"""Our launch or PyTorch's own, as is decided for each call: which of them is made, and when."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sparsegen.dispatch import decision as dispatch_decision  # noqa: E402
from sparsegen.dispatch.decision import Decision  # noqa: E402
from sparsegen.integrations.torch.calls import either  # noqa: E402


@pytest.mark.parametrize(
    ("decision", "captures", "made_first", "made_last"),
    [
        (Decision.always(True, ""), False, True, True),
        (Decision.always(False, ""), False, False, False),
        (Decision(False, True, ""), False, True, True),  # a capture may be the first to need it
        (Decision(True, False, ""), True, False, False),  # and can load nothing
        (None, True, False, True),
    ],
)
def test_ours_is_made_where_it_may_run(
    decision: Decision | None,
    captures: bool,
    made_first: bool,
    made_last: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (either, dispatch_decision):
        monkeypatch.setattr(module, "is_capturing", lambda: captures)
    made: list[str] = []

    def ours() -> Any:
        made.append("ours")
        return lambda x: x + 1

    run = either.chosen(lambda: decision, ours, lambda x: x - 1)
    assert bool(made) is made_first
    ours_runs = decision is None or decision.ours_runs()
    for _ in range(2):
        assert run(torch.zeros(1)).item() == (1 if ours_runs else -1)
    assert len(made) == made_last
