"""Pins: a file that a repository holds, read strictly, obeyed by dispatch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuning_samples import H100, timed, variant, workload

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.dispatch.options import DispatchOptions, OnMiss
from sparsegen.errors import OutputError, PinsError
from sparsegen.kernels import families_of, family
from sparsegen.operators import BlockAttentionBackwardProblem
from sparsegen.settings import Settings
from sparsegen.tuning_db.layers import Layers, MemoryLayer, files_state, open_layers
from sparsegen.tuning_db.pins import PROJECT_PINS, Pin, Pins
from sparsegen.tuning_db.pins_file import read_pins, write_pins
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.rules import Rules

HERE = workload()
PIN = Pin(HERE.problem, HERE.fingerprint, H100.key, variant(tile_n=64).config, "reviewed by two")
MEASURED = MemoryLayer([timed(10, tile_n=32, final=True), timed(12, tile_n=64, final=True)], [])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    other = replace(PIN, device="another", note="")
    path = tmp_path / "deep" / "pins.json"
    write_pins(Pins().with_pins([PIN, other]), path)
    found = read_pins(path)
    assert {*found} == {PIN, other} and found.place == path
    assert len(path.read_text().splitlines()) == 4, "a pin a line, for reviews"
    before = path.read_text()
    write_pins(Pins().with_pins([other, PIN]), path)
    assert path.read_text() == before
    assert {*found.without([PIN])} == {other}
    assert len(read_pins(tmp_path / "none.json")) == 0


def test_a_pin_replaces_another_for_the_same(tmp_path: Path) -> None:
    again = replace(PIN, config=variant(tile_n=128).config)
    assert [*Pins().with_pins([PIN]).with_pins([again])] == [again]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="--pins"):
        write_pins(Pins().with_pins([PIN]), tmp_path / "file" / "pins.json")


Change = Callable[[dict[str, Any]], None]
HOSTILE: dict[str, tuple[Change, str]] = {
    "another format": (lambda d: d.update(format="x"), "sparsegen-pins"),
    "a later version": (lambda d: d.update(version=2), "version"),
    "an unknown family": (lambda d: d["pins"][0].update(family="evil"), "no kernel family"),
    "a value with code": (lambda d: d["pins"][0]["config"].update(tile_n="1; x"), "tile_n"),
    "a family of another operator": (lambda d: d["pins"][0].update(family="csr_sddmm"), "computes spmm"),
    "another member": (lambda d: d["pins"][0].update(run="x"), "no member 'run'"),
    "no fingerprint": (lambda d: d["pins"][0].update(fingerprint="x"), "text like"),
    "two for the same": (lambda d: d.update(pins=d["pins"] * 2), "one pin"),
    "an escape": (lambda d: d["pins"][0].update(note="\x1b[2J"), "printable"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "pins.json"
    write_pins(Pins().with_pins([PIN]), path)
    document = json.loads(path.read_text())
    change, message = HOSTILE[name]
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(PinsError, match=message):
        read_pins(path)


def test_dispatch_obeys_and_says_so() -> None:
    layers = Layers([MEASURED], Rules(Pins().with_pins([PIN])))
    free = choose(HERE, H100, MEASURED)
    assert free.how is How.EXACT and free.config == variant(tile_n=32).config
    for miss in OnMiss:
        pinned = choose(HERE, H100, layers, DispatchOptions(miss))
        assert pinned.how is How.PINNED and pinned.config == PIN.config and not pinned.use_dense
    assert pinned.expected_us == 12 and pinned.is_hit
    assert "csr_spmm (pinned): pinned in" in pinned.explain() and "reviewed by two" in pinned.explain()
    elsewhere = replace(H100, key="another")
    assert choose(HERE, elsewhere, layers).how is not How.PINNED


def test_a_pin_that_may_not_run_is_an_error() -> None:
    wide = next(f for f in families_of("spmm") if not f.computes(HERE.problem))
    config = wide.config()
    layers = Layers([MEASURED], Rules(Pins().with_pins([replace(PIN, config=config)])))
    with pytest.raises(PinsError, match="sparsegen db unpin"):
        choose(HERE, H100, layers)


def test_equal_bits() -> None:
    """Gradients of attention in one pass say that their bits may differ: they run unless equal bits are asked for."""
    problem = BlockAttentionBackwardProblem.of(
        (512, 512), kv_heads=1, group=1, head_dim=64, dtype="float16", block="64x64"
    )
    there = Workload.of(problem, problem.without_pattern)
    config, fixed = (family("tma_attention_backward").config(passes=passes) for passes in (1, 2))
    known = MemoryLayer(
        [
            replace(timed(us, there, final=True), variant=replace(variant(), config=of))
            for us, of in ((5, config), (10, fixed))
        ],
        [],
    )
    equal_bits = Layers([known], Rules(deterministic=True))
    assert choose(there, H100, known).config == config
    assert choose(there, H100, known, DispatchOptions(deterministic=True)).config == fixed
    assert choose(there, H100, equal_bits).config == fixed
    assert choose(there, H100, equal_bits, DispatchOptions(deterministic=False)).config == config
    pin = replace(PIN, problem=problem, fingerprint=there.fingerprint, config=config)
    pinned = Rules(Pins().with_pins([pin]), deterministic=True)
    with pytest.raises(PinsError, match="equal bits"):
        choose(there, H100, Layers([known], pinned))


def test_the_projects_pins_and_those_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"SPARSEGEN_DB": str(tmp_path / "t.db"), "SPARSEGEN_CACHE": str(tmp_path / "cache")}
    settings = Settings.from_environment(environment)
    before = files_state(settings)
    write_pins(Pins().with_pins([PIN]), PROJECT_PINS)
    assert files_state(settings) != before, "whoever keeps layers open opens them again"
    assert len(Rules.of(settings).pins) == 1
    with open_layers(settings) as layers:
        assert layers.rules.pins.find(HERE, H100) == PIN and not layers.rules.deterministic
    PROJECT_PINS.chmod(0o666)
    assert len(Rules.of(settings).pins) == 0, "others could have written it"
    named = Settings.from_environment(
        {**environment, "SPARSEGEN_PINS": str(tmp_path / "p.json"), "SPARSEGEN_DETERMINISTIC": "1"}
    )
    write_pins(Pins().with_pins([PIN, replace(PIN, device="b")]), tmp_path / "p.json")
    rules = Rules.of(named)
    assert len(rules.pins) == 2 and rules.deterministic
