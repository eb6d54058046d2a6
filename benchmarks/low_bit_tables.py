"""Table of decoding with weights of 8 and 4 bits, from what `benchmarks.low_bit_race` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.markdown import NONE, figure, quotient, table
from benchmarks.study import read_document

FILE = "low_bit_race.json.xz"
TOKENS = (1, 4, 8, 16)
EIGHT = ("humming_fp8", "humming_w8", "scaled_mm_e4m3")
FOUR = ("humming_w4",)
# What a line is called, ours, and those of which the fastest is beside it.
LINES = (
    ("`e4m3`, 50 % zeros / dense 8 bits", "50% e4m3", EIGHT),
    ("`e4m3`, 70 % / dense 8 bits", "70% e4m3", EIGHT),
    ("`e4m3`, 2:4 / dense 8 bits", "2:4 e4m3", EIGHT),
    ("`e4m3`, 64:2:8 / dense 8 bits", "64:2:8 e4m3", EIGHT),
    ("`int4`, 50 % / dense 4 bits", "50% int4", FOUR),
    ("`int4`, 70 % / dense 4 bits", "70% int4", FOUR),
    ("`int4`, 2:4 / dense 4 bits", "2:4 int4", FOUR),
    ("`int4`, 64:2:8 / dense 4 bits", "64:2:8 int4", FOUR),
    ("`int4`, 64:2:16 / dense 4 bits", "64:2:16 int4", FOUR),
)
PEERS = (("dense 4 bits, µs", FOUR), ("dense 8 bits, µs", EIGHT), ("dense `float16`, µs", ("float16",)))
Times = Mapping[tuple[tuple[int, int], int, str], float]


def race(devices: Sequence[Path]) -> str:
    """Times of dense products of as many bits over ours, 1, 4, 8 and 16 tokens, by layers; above 1 ours is faster."""
    found = [file for device in devices if (file := device / FILE).is_file()]
    if not found:
        return "Not measured yet: see `benchmarks.low_bit_race` (benchmarks/README.md)."
    document = read_document(found[-1])
    rows = [row for row in document["rows"] if "us" in row]
    times: Times = {((row["m"], row["k"]), row["n"], row["what"]): row["us"] for row in rows}
    layers = list(dict.fromkeys((row["m"], row["k"]) for row in rows))
    lines = [[name, *(_ratios(times, layer, ours, peers) for layer in layers)] for name, ours, peers in LINES]
    lines += [[name, *(_times(times, layer, peers) for layer in layers)] for name, peers in PEERS]
    states = ", ".join(dict.fromkeys(row["state"][:10] for row in rows))
    return (
        table(["1, 4, 8, 16 tokens", *(f"{m} × {k}" for m, k in layers)], lines)
        + f"\n\n{document['device']}, driver {document['driver']}, {document['date']}; measured by {states}; made by "
        f"`{document['command']}`."
    )


def _fastest(times: Times, layer: tuple[int, int], n: int, names: Sequence[str]) -> float | None:
    return min((times[layer, n, name] for name in names if (layer, n, name) in times), default=None)


def _ratios(times: Times, layer: tuple[int, int], ours: str, peers: Sequence[str]) -> str:
    found = [quotient(_fastest(times, layer, n, peers), times.get((layer, n, ours))) for n in TOKENS]
    return ", ".join(map(figure, found)) if any(found) else NONE


def _times(times: Times, layer: tuple[int, int], names: Sequence[str]) -> str:
    found = [_fastest(times, layer, n, names) for n in TOKENS]
    return ", ".join(NONE if us is None else f"{us:.1f}" for us in found) if any(found) else NONE
