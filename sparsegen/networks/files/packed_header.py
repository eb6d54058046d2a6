"""Header of a packed network, all but its images, as JSON values, and the strict reader of these.

A file that was changed on purpose can still hold wrong indices in its images, which no header tells.
"""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from typing import Any, cast

from sparsegen.errors import SavedOperatorError
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.networks.packed.memory_plan import MemoryPlan
from sparsegen.networks.packed.packed_network import CHECKED_BYTES, PackedNetwork, Segment
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import Activation, Readout, SparseNetworkProblem
from sparsegen.system.integers import ceil_div, round_up
from sparsegen.system.json_object import Json
from sparsegen.system.numpy_types import Array
from sparsegen.tuning_db.config_reader import read_config
from sparsegen.tuning_db.json_reader import Node
from sparsegen.tuning_db.problem_reader import read_problem

PAGE = 4096  # page of the file: images begin at its multiples
LARGEST = 2**50  # bytes of images, and of memory
LONGEST_NAME = 100  # characters of a trait's value
MOST_LAYERS = 10**6


def padded(nbytes: int) -> int:
    """Bytes up to the next page."""
    return round_up(nbytes, PAGE)


# --- write -------------------------------------------------------------------------------------------------


def header_of(packed: PackedNetwork) -> Json:
    """All but the images, as JSON values; ``nbytes`` is that of all images, each at its ``begin``."""
    begin, segments = 0, []
    for segment in packed.segments:
        segments.append(_segment_header(segment) | {"begin": begin})
        begin += padded(segment.image.nbytes)
    return {
        "nbytes": begin,
        "segments": segments,
        "family": packed.family.name,
        "packing_version": packed.family.packing_version,
        "config": packed.config.to_dict(),
        "dtype": str(packed.dtype),
        "activation": str(packed.activation),
        "readout": str(packed.readout),
        "inputs": packed.inputs,
        "neurons": packed.neurons,
        "outputs": packed.outputs,
        "edges": packed.edges,
        "clip": packed.clip,
        "plan": asdict(packed.plan),
    }


def _segment_header(segment: Segment) -> Json:
    return {
        "problem": segment.problem.to_dict(),
        "layers": [segment.layers.start, segment.layers.stop],
        "sizes": {name: int(size) for name, size in segment.sizes.items()},
        "scratch": {name: int(nbytes) for name, nbytes in segment.scratch.items()},
        "nnz": segment.nnz,
        "places": {name: [int(begin), int(nbytes)] for name, (begin, nbytes) in segment.places.items()},
        "nbytes": segment.image.nbytes,
        "checksums": list(segment.checksums),
    }


# --- read --------------------------------------------------------------------------------------------------


def packed_of(header: Node, images: Array) -> PackedNetwork:
    """The inverse of `header_of`.

    Args:
        header: every complaint is of its error's class.
        images: uint8, all of them.

    Raises:
        SavedOperatorError: it was packed by another version of the family.
        SparsegenError: the node's error: a value that none has, or values that do not fit each other or the images.
    """
    names = ("family", "packing_version", "config", "dtype", "activation", "readout")
    counts = ("inputs", "neurons", "outputs", "edges")
    f = header.fields((*names, *counts, "nbytes", "segments", "clip", "plan"))
    if f["nbytes"].integer(0, LARGEST) != images.size:
        f["nbytes"].refuse(f"the {images.size} bytes of images that are there")
    plan = _plan(f["plan"])
    segments = tuple(_segment(node, images) for node in f["segments"].items())
    if not 1 <= len(segments) == plan.segments:
        f["segments"].refuse(f"segments, as many as the plan has ({plan.segments})")
    packed = PackedNetwork(
        config=read_config(f["family"], f["config"], segments[0].problem),
        dtype=_one_of(f["dtype"], DType),
        activation=_one_of(f["activation"], Activation),
        readout=_one_of(f["readout"], Readout),
        inputs=f["inputs"].integer(0, MAX_INDEX),
        neurons=f["neurons"].integer(0, MAX_INDEX),
        outputs=f["outputs"].integer(0, MAX_INDEX),
        edges=f["edges"].integer(0, MOST_LAYERS * MAX_INDEX),
        clip=f["clip"].number(above=True),
        plan=plan,
        segments=segments,
    )
    if f["packing_version"].integer(0, MAX_INDEX) != packed.family.packing_version:
        raise SavedOperatorError(
            f"{header.source} was packed by another version of {packed.family.name}: pack it again"
        )
    _require_fitting(header, packed)
    return packed


def _plan(node: Node) -> MemoryPlan:
    names = tuple(field.name for field in dataclasses.fields(MemoryPlan))
    f = node.fields(names)
    return MemoryPlan(
        budget=None if f["budget"].value is None else f["budget"].integer(1, LARGEST),
        batch=f["batch"].integer(1, MAX_INDEX),
        segment_layers=f["segment_layers"].integer(0, MOST_LAYERS),
        segments=f["segments"].integer(1, MOST_LAYERS),
        slots=f["slots"].integer(1, MOST_LAYERS),
        segment_bytes=f["segment_bytes"].integer(0, LARGEST),
        batch_bytes=f["batch_bytes"].integer(0, LARGEST),
        compute_us=f["compute_us"].number(),
        copy_us=f["copy_us"].number(),
    )


def _segment(node: Node, images: Array) -> Segment:
    f = node.fields(
        ("problem", "layers", "sizes", "scratch", "nnz", "places", "nbytes", "checksums", "begin")
    )
    begin, nbytes = f["begin"].integer(0, LARGEST), f["nbytes"].integer(0, LARGEST)
    if begin + nbytes > images.size:
        node.refuse(f"images that end at byte {images.size}, not one at {begin + nbytes}")
    ends = [end.integer(0, MOST_LAYERS) for end in f["layers"].items()]
    if len(ends) != 2 or ends[0] > ends[1]:
        f["layers"].refuse("the first layer, and the one behind the last")
    return Segment(
        _problem(f["problem"]),
        range(*ends),
        _numbers(f["sizes"]),
        _numbers(f["scratch"]),
        f["nnz"].integer(0, MAX_INDEX),
        {name: _place(place, nbytes) for name, place in f["places"].members().items()},
        images[begin : begin + nbytes],
        checksums=_checksums(f["checksums"], nbytes),
    )


def _problem(node: Node) -> SparseNetworkProblem:
    values = {name: value.value for name, value in node.members().items()}
    named = Node(
        values | {"operator": SparseNetworkProblem.operator}, None, node.path, node.source, node.error
    )
    return cast(SparseNetworkProblem, read_problem(named))


def _numbers(node: Node) -> dict[str, int]:
    return {name: value.integer(0, LARGEST) for name, value in node.members().items()}


def _place(node: Node, nbytes: int) -> tuple[int, int]:
    found = [number.integer(0, nbytes) for number in node.items()]
    if len(found) != 2 or sum(found) > nbytes:
        node.refuse(f"the begin and the bytes of an array within the {nbytes} of its segment")
    return found[0], found[1]


def _checksums(node: Node, nbytes: int) -> tuple[int, ...]:
    found = tuple(number.integer(0, 2**32 - 1) for number in node.items())
    if found and len(found) != ceil_div(nbytes, CHECKED_BYTES):
        node.refuse(f"the checksums of {nbytes} bytes, or none")
    return found


def _one_of(node: Node, kind: Any) -> Any:
    text = node.text(LONGEST_NAME)
    if text not in list(kind):
        node.refuse(f"one of {', '.join(kind)}")
    return kind(text)


def _require_fitting(header: Node, packed: PackedNetwork) -> None:
    """Refuse segments that are not the layers of one network, one after another."""
    layer = 0
    for number, segment in enumerate(packed.segments):
        problem, is_last = segment.problem, number == len(packed.segments) - 1
        told = {
            "layers": (segment.layers.start, len(segment.layers)),
            "dtype": problem.dtype,
            "activation": problem.activation,
            "readout": problem.readout,
            "neurons": problem.neurons,
            "inputs of a batch": problem.n,
            "batch": problem.batch,
            "outputs": problem.outputs,
        } | {f"the size {name}": size for name, size in segment.sizes.items() if hasattr(problem, name)}
        wanted = {
            "layers": (layer, problem.layers),
            "dtype": packed.dtype,
            "activation": packed.activation,
            "readout": packed.readout if is_last else Readout.NEURONS,
            "neurons": packed.neurons,
            "inputs of a batch": packed.plan.batch,
            "batch": 1,
            "outputs": packed.outputs if is_last else packed.neurons,
        } | {f"the size {name}": getattr(problem, name) for name in segment.sizes if hasattr(problem, name)}
        for name, value in told.items():
            if value != wanted[name]:
                header.refuse(f"{name} of segment {number + 1} to be {wanted[name]}, not {value}")
        layer = segment.layers.stop
    edges = sum(segment.problem.edges(segment.nnz) for segment in packed.segments)
    if packed.edges != edges:
        header.refuse(f"{edges} edges as of its segments")
    if packed.inputs > packed.neurons:
        header.refuse("no more inputs than neurons")
