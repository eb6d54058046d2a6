"""Operators of layers in graphs of `torch.compile` without gradients: one for each layer, or for a shared input.

A traced layer becomes one ``compiled_linear``, which names its shared input and its number there. Where all layers of
one are in a graph with one tensor, the pass `JoinedLayers` puts one ``joint_linear`` in their place. It is a pass over
the functional graph, not a matter of the trace, because there a tensor that is changed in place between two layers is
two tensors, and layers that are not called are not there.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TypeAlias

from torch import Tensor

from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.calls.direct import without_gradient
from sparsegen.integrations.torch.pattern.pattern import SparsePattern, pattern_of
from sparsegen.integrations.torch.pattern.products import linear_at_once
from sparsegen.integrations.torch.pattern.shared_input import Part, SharedPart, shared_input_of

# Its pattern's handle, its size, its activation's word; the handle of its shared input, its number there, their number.
# Dynamo looks at what a trace read in each call of the compiled model: at numbers and words of a module's dictionary as
# fast as at a dense layer's, but any other object there has it look at all of the module's.
TracedAs: TypeAlias = tuple[int, int, str, int, int, int]

_ACTIVATIONS = {str(one): one for one in Activation}


def traced_as(
    pattern: SparsePattern, out_features: int, activation: str, part: Part | None
) -> TracedAs | None:
    """Returns what a trace reads of a layer; nothing of one whose part is no `SharedPart`.

    Args:
        activation: an `Activation`'s word.
        part: its part of a launch, if it shares one.
    """
    if part is None:
        return pattern.handle, out_features, activation, 0, 0, 1
    if not isinstance(part, SharedPart):
        return None
    return pattern.handle, out_features, activation, part.handle, part.number, part.members


def compiled_linear(
    x: Tensor, values: Tensor, bias: Tensor | None, layer: TracedAs, *, casts: bool
) -> Tensor:
    """Traces a layer's result.

    Args:
        x: ... × in features.
        layer: what it is `traced_as`.
        casts: see `products.linear_at_once`.
    """
    pattern, out_features, activation, group, number, members = layer
    if values.requires_grad or (bias is not None and bias.requires_grad):
        group, number, members = 0, 0, 1  # each call would put what trains below each other anew
    y: Tensor = _compiled(x, values, bias, pattern, out_features, activation, casts, group, number, members)
    return y


def _compiled_of(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    pattern: int,
    out_features: int,
    activation: str,
    casts: bool,
    *_: int,
) -> Tensor:
    return linear_at_once(x, values, bias, pattern_of(pattern), _ACTIVATIONS[activation], casts=casts)


def _joint_of(
    x: Tensor, weights: list[Tensor | None], out_features: int, activation: str, casts: bool, group: int
) -> Tensor:
    return shared_input_of(group).product(x, weights, _ACTIVATIONS[activation], casts=casts)[0]


def _fake_compiled(
    x: Tensor, values: Tensor, bias: Tensor | None, pattern: int, out_features: int, *rest: object
) -> Tensor:
    if rest[2]:
        _have_layers_joined()
    return x.new_empty((*x.shape[:-1], out_features))


def _have_layers_joined() -> None:
    """Give Inductor the pass: now that something is traced, for loading its options takes more than a second."""
    if find_spec("torch._inductor.custom_graph_pass") is not None:  # in PyTorch 2.6 and later
        from sparsegen.integrations.torch.pattern import joined_layers

        joined_layers.install()


_compiled = without_gradient(
    "compiled_linear",
    "(Tensor x, Tensor values, Tensor? bias, int pattern, int out_features, str activation, bool casts, int group, "
    "int number, int members) -> Tensor",
    _compiled_of,
    _fake_compiled,
)
without_gradient(
    "joint_linear",
    "(Tensor x, Tensor?[] weights, int out_features, str activation, bool casts, int group) -> Tensor",
    _joint_of,
    lambda x, weights, out_features, *_: x.new_empty((*x.shape[:-1], out_features)),
)
