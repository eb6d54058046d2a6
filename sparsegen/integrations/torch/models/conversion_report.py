"""Report of a conversion, as one summary and layer by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sparsegen.dispatch.pruned_times import LayerTime
from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.models.in_situ import InSitu
from sparsegen.operators import Quantization
from sparsegen.system.json_object import Json

NAMES_SHOWN = 3  # names shown of layers of which one thing is said


@dataclass(frozen=True, slots=True)
class ConvertedLayer:
    """A layer that became sparse.

    Attributes:
        shape: (out, in) features.
        times: times of one product for each number of tokens, as far as they are known; empty for a dtype without
            kernels, and where example inputs decided and no number was given.
        activation: activation that is part of it.
        one_launch: names of the layers that share a launch, this one among them; empty where it has its own.
        rounding: what its values were rounded to; None where they were not.
        rounding_error: error of their norm.
    """

    name: str
    shape: tuple[int, int]
    nonzeros: int
    times: tuple[LayerTime, ...]
    activation: Activation = Activation.NONE
    one_launch: tuple[str, ...] = ()
    rounding: Quantization | None = None
    rounding_error: float | None = None

    @property
    def sparsity(self) -> float:
        size = self.shape[0] * self.shape[1]
        return 1 - self.nonzeros / size if size else 0.0


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A layer with a matrix of weights that stayed as it was, and the reason in a few words."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConversionReport:
    """Result of `convert`.

    Attributes:
        tokens: the numbers that products were looked up for.
        assumes_tokens: true if neither they nor example inputs were given.
        converted, dense: the layers, in the model's order.
        pruned_again: converted layers that had been pruned before, and were by this call once more.
        in_situ: the decision inside the model; None without example inputs.
        wide: rounded layers of a dtype in which no codes are multiplied.
    """

    tokens: tuple[int, ...]
    assumes_tokens: bool
    converted: tuple[ConvertedLayer, ...]
    dense: tuple[DenseLayer, ...]
    in_situ: InSitu | None = None
    pruned_again: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()

    @property
    def said_of_pruning(self) -> str:
        """Warns that layers were pruned twice, and says how to keep their former zeros; empty if none were."""
        if not self.pruned_again:
            return ""
        return (
            f"{_names(self.pruned_again)} had been pruned before, and now once more: "
            "convert(model) without a sparsity keeps the zeros that are there"
        )

    @property
    def said_of_wide(self) -> str:
        """Warns that codes are not multiplied, and says how they are; empty if all that are there are."""
        if not self.wide:
            return ""
        return (
            f"{_names(self.wide)} multiply by the unquantised values, as codes are multiplied in float16 and bfloat16: "
            "model.half() makes the model one of float16"
        )

    @property
    def shared_launches(self) -> tuple[tuple[str, ...], ...]:
        """The layers that share launches, by launch."""
        return tuple(dict.fromkeys(layer.one_launch for layer in self.converted if layer.one_launch))

    @property
    def summary(self) -> str:
        """The model as a whole, in a line."""
        said = f"{len(self.converted)} sparse, {len(self.dense)} left dense"
        faster = sum(layer.reason.startswith("dense is faster") for layer in self.dense)
        if faster:
            said += f" ({faster} because dense is faster)"
        activations = sum(layer.activation is not Activation.NONE for layer in self.converted)
        if activations:
            said += f", {activations} with their activation"
        if errors := [layer.rounding_error for layer in self.converted if layer.rounding_error is not None]:
            said += f", {len(errors)} rounded (error of their norm up to {max(errors):.2g})"
        launches = self.shared_launches
        if launches:
            said += (
                f", {sum(map(len, launches))} in {len(launches)} shared launch{'es' * (len(launches) > 1)}"
            )
        if self.in_situ is not None and self.in_situ.steps:
            how = "as a CUDA graph" if self.in_situ.captured else "called from Python"
            if self.in_situ.compile_mode is not None:
                how = f"compiled in mode {self.in_situ.compile_mode}"
            ours, theirs = self.in_situ.final_us, self.in_situ.dense_us
            return f"{said}; the model takes {ours:.0f} µs {how}, dense {theirs:.0f} µs"
        for i, n in enumerate(self.tokens):
            times = [layer.times[i] for layer in self.converted if len(layer.times) > i]
            both = [(t.fastest_us, t.dense_us) for t in times if t.fastest_us and t.dense_us]
            if both:
                ours, theirs = (sum(us or 0.0 for us in column) for column in zip(*both, strict=True))
                said += f"; for {n} tokens {len(both)} products take {ours:.0f} µs, dense {theirs:.0f} µs"
        return said

    def __repr__(self) -> str:
        return f"<ConversionReport: {self.summary}>"

    def __str__(self) -> str:
        lines = [self.summary]
        for layer in self.converted:
            out_features, in_features = layer.shape
            lines.append(
                f"  {layer.name}: {out_features} × {in_features}, {layer.sparsity:.1%} sparse"
                f"{_with(layer.activation)}{_rounded(layer)}{self._said(layer)}"
            )
        lines += [f"  {said}" for said in (self.said_of_pruning, self.said_of_wide) if said]
        lines += [f"  {', '.join(names)} read one tensor: one launch" for names in self.shared_launches]
        alike: dict[tuple[str, str], list[str]] = defaultdict(list)
        for left in self.dense:
            alike[left.kind, left.reason].append(left.name)
        for (kind, reason), names in alike.items():
            stay = "stays" if len(names) == 1 else "stay"
            lines.append(f"  {_names(names)} ({kind}) {stay} dense: {reason}")
        return "\n".join(lines)

    def _said(self, layer: ConvertedLayer) -> str:
        said = []
        for n, time in zip(self.tokens, layer.times, strict=False):
            if time.sparse_us is not None:
                dense = "" if time.dense_us is None else f", dense {time.dense_us:.1f} µs"
                said.append(f"; {time.sparse_us:.1f} µs{dense} for {n} tokens ({time.source})")
        if not said and self.in_situ is None:  # else the whole model's was
            return "; its time was not measured"
        return "".join(said)

    def to_dict(self) -> Json:
        """JSON values."""
        return {
            "tokens": list(self.tokens),
            "assumes_tokens": self.assumes_tokens,
            "summary": self.summary,
            "pruned_again": list(self.pruned_again),
            "wide": list(self.wide),
            "converted": [
                {
                    "name": layer.name,
                    "shape": list(layer.shape),
                    "nonzeros": layer.nonzeros,
                    "sparsity": layer.sparsity,
                    "activation": layer.activation,
                    "one_launch": list(layer.one_launch),
                    "rounding": None if layer.rounding is None else asdict(layer.rounding),
                    "rounding_error": layer.rounding_error,
                    "times": [time.to_dict() for time in layer.times],
                }
                for layer in self.converted
            ],
            "in_situ": None if self.in_situ is None else asdict(self.in_situ),
            "dense": [{"name": d.name, "kind": d.kind, "reason": d.reason} for d in self.dense],
        }


def _names(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    others = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {others} more" if others > 0 else "")


def _with(activation: Activation) -> str:
    return "" if activation is Activation.NONE else f", with {activation}"


def _rounded(layer: ConvertedLayer) -> str:
    if layer.rounding is None:
        return ""
    error = "" if layer.rounding_error is None else f" (error of their norm {layer.rounding_error:.2g})"
    return f", values rounded to {layer.rounding}{error}"
