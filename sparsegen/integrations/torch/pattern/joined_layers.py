"""A pass over graphs of PyTorch's compiler: layers that share an input become one operator, and views of its result."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor import config, custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx.node import map_arg

_ALONE, _JOINT = torch.ops.sparsegen.compiled_linear.default, torch.ops.sparsegen.joint_linear.default
_CASTS = (torch.ops.prims.convert_element_type.default, torch.ops.aten._to_copy.default)
_INPUTS = ("placeholder", "get_attr")  # there before every layer

# A pass that is told whether gradients are asked for, which ones before it may want to know.
_Told: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", CustomGraphPass)  # in newer PyTorch

Calls = dict[int, fx.Node]  # by the layer's number among those of its shared input


def install() -> None:
    """Have Inductor run the pass on what it compiles from now on, behind one that is there."""
    found = config.post_grad_custom_pre_pass
    if not isinstance(found, JoinedLayers):
        config.post_grad_custom_pre_pass = JoinedLayers(found)


class JoinedLayers(_Told):
    """The pass, and those before it."""

    def __init__(self, before: Any) -> None:
        """
        Args:
            before: the option's value: one pass, several, or None.
        """
        several = before if isinstance(before, list | tuple) else [before]
        self._before = [one for one in several if one is not None]

    def uuid(self) -> Any:
        """Identifies what it does to graphs in Inductor's cache; None, as of a pass before it that has no name."""
        found: list[Any] = [get_hash_for_files((str(Path(__file__)),))]
        for one in self._before:
            found.append(one.uuid() if isinstance(one, CustomGraphPass) else None)
        return None if None in found else tuple(found)

    def __call__(self, graph: fx.Graph, is_inference: bool = True) -> None:
        for one in self._before:
            if _Told is not CustomGraphPass and isinstance(one, _Told):
                one(graph, is_inference)
            else:
                one(graph)
        join(graph)


def join(graph: fx.Graph) -> None:
    """Have all layers of a shared input that have one input in a graph be one operator."""
    groups: dict[Hashable, Calls] = {}
    for node in graph.nodes:
        if node.target is _ALONE:
            x, _, _, _, _, activation, casts, group, number, _ = node.args
            if group:
                groups.setdefault((_made_by(x), activation, casts, group), {}).setdefault(number, node)
    for calls in groups.values():
        first = next(iter(calls.values()))
        weights = [one for node in calls.values() for one in node.args[1:3] if isinstance(one, fx.Node)]
        if len(calls) == first.args[-1] and all(one.op in _INPUTS for one in weights):
            _join(graph, first, [calls[number] for number in range(len(calls))])


def _made_by(x: fx.Node) -> Hashable:
    """Returns an input, or how it is cast: under autocast, for each layer alone."""
    if x.target in _CASTS:
        return x.target, x.args, tuple(x.kwargs.items())
    return x


def _join(graph: fx.Graph, first: fx.Node, nodes: list[fx.Node]) -> None:
    """Put the joint operator before the first of the layers, and views of its result in the place of all."""
    x, _, _, _, _, activation, casts, group, _, _ = first.args
    assert isinstance(x, fx.Node)
    widths: list[Any] = [node.args[4] for node in nodes]
    weights = [one for node in nodes for one in node.args[1:3]]
    tokens, width = x.meta["val"].shape[:-1], sum(widths)
    with graph.inserting_before(first):
        given = (x, weights, width, activation, casts, group)
        joint = graph.call_function(_JOINT, given)
        joint.meta = _meta(first, x.meta["val"].new_empty((*tokens, width)))
        if "eager_input_vals" in first.meta:  # have Inductor lay X out as it was traced
            joint.meta["eager_input_vals"] = map_arg(given, lambda node: node.meta["val"]), {}
        begin = 0
        for node, size in zip(nodes, widths, strict=True):
            bounds = (len(tokens), begin, begin + size)
            part = graph.call_function(torch.ops.aten.slice.Tensor, (joint, *bounds))
            part.meta = _meta(node, joint.meta["val"].narrow(-1, begin, size))
            node.replace_all_uses_with(part)
            begin += size
    casts_of_x = dict.fromkeys(node.args[0] for node in nodes)
    for node in nodes:
        graph.erase_node(node)
    for cast in casts_of_x:
        if isinstance(cast, fx.Node) and cast is not x and not cast.users:
            graph.erase_node(cast)


def _meta(like: fx.Node, value: Any) -> dict[str, Any]:
    kept: Mapping[str, Any] = {key: like.meta[key] for key in ("stack_trace", "seq_nr") if key in like.meta}
    return {**kept, "val": value}
