"""Variation of row lengths in the Deep Learning Matrix Collection: numbers fitted by benchmarks/fit_dlmc.py.

The squared CoV of row lengths is taken as the sum of two parts: what independent elements would have anyway,
(1 - d) / (d · k) at density d and k columns, and a part that pruning adds because rows differ in importance.
The root of the second part is fitted as scale · d^-power for each model and way of pruning.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from sparsegen.errors import SuiteError
from sparsegen.tuning_db.json_reader import parse_json

FILE = "dlmc_row_cov.json"


@dataclass(frozen=True, slots=True)
class RowVariation:
    """The fit for one model and way of pruning.

    Attributes:
        scale, power: the part that pruning adds is scale · density^-power.
        spread: a typical factor between a matrix's CoV and the fit's, above or below (the exponential of
            the median absolute deviation of the logarithms).
        matrices: number of measured matrices.
    """

    scale: float
    power: float
    spread: float
    matrices: int

    def row_cov(self, columns: int, density: float) -> float:
        """CoV of the row lengths of a matrix with this many columns; density in (0, 1]."""
        return float(
            (independent_variance(columns, density) + (self.scale * density**-self.power) ** 2) ** 0.5
        )


def independent_variance(columns: int, density: float) -> float:
    """Squared CoV of the row lengths where every element is drawn independently."""
    return (1 - density) / (density * columns)


def row_cov(model: str, method: str, columns: int, density: float) -> float:
    """CoV of row lengths for a model (``rn50``, ``transformer``) and a way of pruning, as DLMC's folders name them.

    Raises:
        SuiteError: the collection has no such model, or not pruned in this way.
    """
    fits = row_variations()
    if (model, method) not in fits:
        known = ", ".join(" ".join(pair) for pair in fits)
        raise SuiteError(f"DLMC has no matrices of {model} {method}; there are {known}")
    return fits[model, method].row_cov(columns, density)


@cache
def row_variations() -> dict[tuple[str, str], RowVariation]:
    """The fits by (model, way of pruning)."""
    text = (resources.files("sparsegen.bench.patterns") / FILE).read_text(encoding="utf-8")
    root = parse_json(text, FILE, SuiteError).fields(("source", "fits"))
    fits: dict[tuple[str, str], RowVariation] = {}
    for model, methods in root["fits"].members().items():
        for method, node in methods.members().items():
            f = node.fields(("scale", "power", "spread", "matrices"))
            fits[model, method] = RowVariation(
                f["scale"].number(),
                f["power"].number(-10.0),
                f["spread"].number(1.0),
                f["matrices"].integer(1, 10**6),
            )
    return fits
