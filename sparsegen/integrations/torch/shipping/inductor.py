"""Inductor with sparsegen's kernels beside its own products, where weights are frozen and pruned.

    from sparsegen.integrations.torch import inductor

    inductor.enable()
    with torch.no_grad():
        compiled = torch.compile(model)  # a model of plain torch.nn.Linear layers

The hooks are PyTorch's own: with ``torch._inductor.config.freezing`` weights become constants of the compiled graph,
and a pass over it (``post_grad_custom_post_pass``) puts an operator in the place of products with those that are
sparse, and of the ReLU that follows one with a bias.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
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
from sparsegen.integrations.torch.calls.activations import Activation
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.pattern.linear import SparseLinear
from sparsegen.integrations.torch.pattern.pattern import SparsePattern
from sparsegen.integrations.torch.shipping.layer_calls import LayerCall
from sparsegen.integrations.torch.shipping.libraries import loaded_library, require_stable_interface
from sparsegen.integrations.torch.shipping.shipped_products import ShippedProduct, shipped_products
from sparsegen.kernels.base import Device
from sparsegen.measure.l2 import L2
from sparsegen.measure.race import in_turn, on_default_stream
from sparsegen.plan.executors import shared_executor
from sparsegen.pruning.pruned_layers import LEAST_SPARSITY
from sparsegen.tuning_db.records import Called

log = logging.getLogger(__name__)

CALLS = 20  # in a row, each time that Python's calls are timed
_aten = torch.ops.aten


def enable(*, run_dense: Dense | str = Dense.AUTO, db: str | Path | None = None) -> None:
    """Have models that are compiled from now on run sparsegen's kernels where these take less time than dense products.

    It turns on freezing, so that compiled models take no new weights. Products count whose weight has at least half
    zeros, called without gradients with a fixed number of tokens. Each is decided while the model is compiled, as
    those of `SparseLinear` are: by measured times, by estimates, or by timing both; the others stay PyTorch's. Unless
    Inductor captures CUDA graphs (``mode="reduce-overhead"``), the operator and PyTorch's are called in turn too, as
    the host's time then counts. What is compiled so is not kept in Inductor's cache on disk.

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
    """A product of the graph with a frozen weight that has many zeros.

    Attributes:
        relu: a ReLU that alone reads the product, or a view of it.
        dense: the weight, out × in.
    """

    node: fx.Node
    relu: fx.Node | None
    bias: fx.Node | None
    call: LayerCall
    dense: Tensor

    @property
    def x(self) -> fx.Node:
        """The operand, which another candidate's replacement may be by now."""
        found = self.node.args[-2]
        assert isinstance(found, fx.Node)
        return found


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
            launches = [launch for one in sparse if (launch := products[one.call].launch) is not None]
            namespace = loaded_library(launches) if sparse else ""
            calls = [_Call(one, products[one.call], namespace, number) for number, one in enumerate(sparse)]
            if self._policy is Dense.AUTO and not config.triton.cudagraphs:
                calls = _faster_from_python(calls, device)
            log.info("%d of %d pruned products run sparsegen's kernels", len(calls), len(candidates))
            for call in calls:
                call.replace(graph)

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
        relu = _relu_of(node) if bias is not None else None
        layer.activation = Activation.NONE if relu is None else Activation.RELU
        return _Candidate(node, relu, added_node, LayerCall(layer, None, tokens, dense.dtype), dense)


def _relu_of(node: fx.Node) -> fx.Node | None:
    """The ReLU that alone reads a node, or a view of it that nothing else reads."""
    while len(node.users) == 1:
        node = next(iter(node.users))
        if node.target == _aten.relu.default:
            return node
        if node.target not in (_aten.view.default, _aten.reshape.default):
            break
    return None


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


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a library's operator that computes a product.

    Attributes:
        number: of the launch in the library.
    """

    one: _Candidate
    product: ShippedProduct
    namespace: str
    number: int

    def __str__(self) -> str:
        sizes, launch = tuple(self.one.dense.shape), self.product.launch
        assert launch is not None
        return f"{sizes[0]} × {sizes[1]} for {self.one.call.tokens} tokens by {launch.family}"

    @property
    def operator(self) -> Any:
        return getattr(torch.ops, self.namespace).linear.default

    @property
    def kind(self) -> Hashable:
        """Equal for calls that take about one time."""
        launch = self.product.launch
        assert launch is not None
        return launch.problem, launch.family, tuple(launch.config.items())

    def both(self) -> tuple[Callable[[], object], Callable[[], object]]:
        """The operator's call and PyTorch's, as compiled code makes them."""
        one, product = self.one, self.product
        x = one.dense.new_ones(one.call.tokens, one.dense.shape[1])
        into, turned, has_relu = (
            x.new_empty(x.shape[0], one.dense.shape[0]),
            one.dense.t(),
            one.relu is not None,
        )

        def dense() -> object:
            if product.bias is None:
                return torch.mm(x, turned, out=into)
            found = torch.addmm(product.bias, x, turned, out=into)
            return torch.relu_(found) if has_relu else found

        return lambda: self.operator(x, product.weight, product.bias, self.number), dense

    def replace(self, graph: fx.Graph) -> None:
        """Put it in the product's place."""
        one, name = self.one, f"{self.namespace}_{self.number}"
        module = graph.owning_module
        assert module is not None
        module.register_buffer(name, self.product.weight)
        fake = one.x.meta["val"].fake_mode
        with graph.inserting_before(one.node):
            weight = graph.get_attr(name)
            weight.meta["val"] = fake.from_tensor(self.product.weight)
            call = graph.call_function(self.operator, (one.x, weight, one.bias, self.number))
        call.meta = dict(one.node.meta)
        one.node.replace_all_uses_with(call)
        graph.erase_node(one.node)
        if one.relu is not None:
            before = one.relu.args[0]
            assert isinstance(before, fx.Node)
            one.relu.replace_all_uses_with(before)
            graph.erase_node(one.relu)


def _faster_from_python(calls: Sequence[_Call], device: Device) -> list[_Call]:
    """Calls that take no longer from Python than PyTorch's own; one of a kind is timed."""
    executor, faster = shared_executor(device), dict[Hashable, bool]()
    with on_default_stream(executor):
        for call in calls:
            if call.kind not in faster:
                ours, dense = in_turn(call.both(), executor, Called.HOST, L2.WARM, calls=CALLS)
                faster[call.kind] = ours <= dense
                log.info("%s: %.1f us from Python, PyTorch's %.1f", call, ours, dense)
    return [call for call in calls if faster[call.kind]]
