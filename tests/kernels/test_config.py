"""Configs: one class for each family, hashable whatever a database holds, the same in any process."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from sparsegen.kernels import families, read_config
from sparsegen.kernels.base import Family
from sparsegen.kernels.config import Config, UnknownConfig, tunable


@dataclass(frozen=True)
class MadeUpConfig(Config):
    size: int = tunable(1, (1, 2), "made-up")


def test_whatever_json_holds_is_a_config_that_can_be_looked_up() -> None:
    values = {"tile_n": [32, {"a": None}], "staging": None, "share": 0.5, "flag": True}
    for family in ("csr_spmm", "of_the_future"):
        found = read_config(family, values)
        assert not found.is_known and found.family_name == family
        assert {found: 1}[read_config(family, values)] == 1
        assert found.to_dict() == {
            "flag": True,
            "share": "0.5",
            "staging": "null",
            "tile_n": '[32, {"a": null}]',
        }
    assert read_config("csr_spmm", {"tile_n": 32}).is_known


def test_two_families_cannot_share_a_class_of_configs() -> None:
    class First(Family):  # type: ignore[type-arg]
        name, config_type = "first", MadeUpConfig

    with pytest.raises(
        TypeError, match="MadeUpConfig is the config of first; second needs a class of its own"
    ):

        class Second(Family):  # type: ignore[type-arg]
            name, config_type = "second", MadeUpConfig

    with pytest.raises(TypeError, match="heir needs a class of its own"):

        class Heir(First):
            name = "heir"

    assert MadeUpConfig().family_name == First.name == "first"

    class Mended(First):  # of the same name: it takes the first one's place
        pass

    assert MadeUpConfig().family_name == Mended.name


@pytest.mark.parametrize("name", sorted(families()))
def test_a_pickled_config_is_the_same_one(name: str) -> None:
    config = families()[name].config_type()
    assert config.key and pickle.loads(pickle.dumps(config)) == config
    unknown = UnknownConfig(name, config.key[1])
    assert pickle.loads(pickle.dumps(unknown)) == unknown != config
