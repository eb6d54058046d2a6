"""Inductor with sparsegen's kernels beside its own products, where weights are frozen and pruned.

    from sparsegen.integrations.torch import inductor

    inductor.enable()
    with torch.no_grad():
        compiled = torch.compile(model)  # a model of plain torch.nn.Linear layers

The hooks are PyTorch's own: with ``torch._inductor.config.freezing`` weights become constants of the compiled graph,
and a pass over it (``post_grad_custom_post_pass``) puts an operator in the place of products with those that are
sparse.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses.fake_tensor import unset_fake_temporarily

from sparsegen import arguments
from sparsegen.dispatch.options import Dense
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pattern import SparsePattern
from sparsegen.integrations.torch.shipping.layer_calls import LayerCall
from sparsegen.integrations.torch.shipping.libraries import loaded_library, require_stable_interface
from sparsegen.integrations.torch.shipping.shipped_products import ShippedProduct, shipped_products
from sparsegen.pruning.pruned_layers import LEAST_SPARSITY

log = logging.getLogger(__name__)

_aten = torch.ops.aten


def enable(*, run_dense: Dense | str = Dense.AUTO, db: str | Path | None = None) -> None:
    """Have models that are compiled from now on run sparsegen's kernels where these take less time than dense products.

    It turns on freezing, so that compiled models take no new weights. Products count whose weight has at least half
    zeros, called without gradients with a fixed number of tokens. Each is decided while the model is compiled, as
    those of `SparseLinear` are: by measured times, by estimates, or by timing both; the others stay PyTorch's. What
    is compiled so is not kept in Inductor's cache on disk.

    Args:
        run_dense: see `SparsePattern`; ``"never"`` takes the kernels wherever they run.
        db: the tuning database, see `sparsegen.prepare`.

    Raises:
        ConfigError: an unknown word, or a db that is none.
        PackageMissingError: a PyTorch older than 2.10.
    """
    require_stable_interface()
    policy = Dense.parse(run_dense, "run_dense")
    place = None if db is None else Path(arguments.location(db, "db"))
    disable()
    made = _SparseProducts(policy, place, config.freezing)
    config.post_grad_custom_post_pass, config.freezing = made, True


def disable() -> None:
    """Have models that are compiled from now on run as before `enable`; no-op without one."""
    found = config.post_grad_custom_post_pass
    if isinstance(found, _SparseProducts):
        config.post_grad_custom_post_pass, config.freezing = found.before, found.froze_before


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A product of the graph with a frozen weight that has many zeros."""

    node: fx.Node
    x: fx.Node
    bias: fx.Node | None
    call: LayerCall


class _SparseProducts(CustomGraphPass):
    """The pass over a graph after all of Inductor's own, and after those that users had put there."""

    def __init__(self, policy: Dense, db: Path | None, froze_before: bool) -> None:
        self._policy, self._db = policy, db
        self.before: Any = config.post_grad_custom_post_pass  # a pass, several of them, or None
        self.froze_before = froze_before

    def uuid(self) -> None:
        """Returns None: what this process compiled is of no use to another."""

    def __call__(self, graph: fx.Graph) -> None:
        for one in self.before if isinstance(self.before, list | tuple) else [self.before]:
            if one is not None:
                one(graph)
        with unset_fake_temporarily(), torch.inference_mode(False), torch.no_grad():
            candidates = [found for node in graph.nodes if (found := self._candidate(node)) is not None]
            if not candidates:
                return
            device = kernel_device(candidates[0].call.layer.values)
            assert device is not None
            products = shipped_products([one.call for one in candidates], [device])
            sparse = [one for one in candidates if products[one.call].launch is not None]
            launches = [products[one.call].launch for one in sparse]
            log.info("%d of %d pruned products run sparsegen's kernels", len(sparse), len(candidates))
            if sparse:
                namespace = loaded_library([launch for launch in launches if launch is not None])
                for number, one in enumerate(sparse):
                    _replace(graph, one, products[one.call], namespace, number)

    def _candidate(self, node: fx.Node) -> _Candidate | None:
        """The product that a node is, if its weight counts."""
        if node.target not in (_aten.mm.default, _aten.addmm.default) or node.kwargs:
            return None
        *added, x, weight = node.args
        turned = _constant(weight)
        bias = _constant(added[0]) if added else None
        if not isinstance(x, fx.Node) or turned is None or (added and bias is None):
            return None
        tokens, dense = x.meta["val"].shape[0], turned.t()
        if not isinstance(tokens, int) or kernel_device(dense) is None or dense.numel() == 0 or not tokens:
            return None
        if bias is not None and (bias.shape != dense.shape[:1] or bias.dtype != dense.dtype):
            return None
        kept = dense != 0
        if 1 - kept.float().mean().item() < LEAST_SPARSITY or not kept.any():
            return None
        layer = _layer(dense, bias, SparsePattern(kept, run_dense=self._policy, db=self._db))
        added_node = added[0] if added and isinstance(added[0], fx.Node) else None
        return _Candidate(node, x, added_node, LayerCall(layer, None, tokens, dense.dtype))


def _layer(weight: Tensor, bias: Tensor | None, pattern: SparsePattern) -> SparseLinear:
    """The sparse layer of a frozen weight."""
    dense = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    dense.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        dense.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return SparseLinear.on_pattern(dense, pattern)


def _constant(node: Any) -> Tensor | None:
    """The tensor of a node that reads a constant of the graph; None for every other node."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    found = getattr(node.graph.owning_module, str(node.target))
    return found if isinstance(found, Tensor) else None


def _replace(graph: fx.Graph, one: _Candidate, product: ShippedProduct, namespace: str, number: int) -> None:
    """Put the library's operator in a product's place."""
    name = f"{namespace}_{number}"
    module = graph.owning_module
    assert module is not None
    module.register_buffer(name, product.weight)
    fake = one.x.meta["val"].fake_mode
    with graph.inserting_before(one.node):
        weight = graph.get_attr(name)
        weight.meta["val"] = fake.from_tensor(product.weight)
        arguments_of = (one.x, weight, one.bias, number)
        call = graph.call_function(getattr(torch.ops, namespace).linear.default, arguments_of)
    call.meta = dict(one.node.meta)
    one.node.replace_all_uses_with(call)
    graph.erase_node(one.node)
