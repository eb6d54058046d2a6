"""Origin of a source, in its own words."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import pytest
from jinja2 import meta

from sparsegen.kernels import families
from sparsegen.operators import SpmmProblem
from sparsegen.render import sources as render


def test_parts_are_the_templates_that_are_included_however_deep() -> None:
    """Jinja2 reads them alike: `parts_of` looks for words, which is ten times faster."""
    parts = render.parts_of("spmm/csr_spmm.cu.j2")
    assert {"spmm/csr_spmm.cu.j2", "lib/header.cuh.j2", "lib/element.cuh.j2"} <= parts
    assert "spmm/mma_spmm.cu.j2" not in parts and "lib/mma/tensor_core.cuh.j2" not in parts
    root = files("sparsegen.templates")
    for family in families().values():
        whole = render.parts_of(family.template)
        named = {
            name
            for part in whole
            for name in meta.find_referenced_templates(
                render.environment().parse(root.joinpath(part).read_text(encoding="utf-8"))
            )
        }
        assert named == whole - {family.template}, "a name that is no constant would be None here"


def test_threads_render_the_same_source() -> None:
    """Also where all of them are the first to."""
    family = families()["csr_spmm"]
    problem, config = SpmmProblem(64, 64, 64), family.config()
    render.environment.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        sources = set(pool.map(lambda _: render.render(family, problem, config), range(16)))
    assert len(sources) == 1


def test_every_template_is_part_of_some_family() -> None:
    """Templates are parts of families, or of programs (`test_standalone.py`, `test_torch_ship.py`)."""
    of_families = set().union(*(render.parts_of(family.template) for family in families().values()))
    names = {n for n in render.environment().list_templates() if n.endswith(".j2")}
    assert of_families == {n for n in names if not n.startswith(("standalone/", "shipping/"))}


def test_a_change_makes_other_digests_where_it_is_included(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {family.name: render.template_digest(family.template) for family in families().values()}
    assert len(set(digests.values())) == len({family.template for family in families().values()})
    render.template_digest.cache_clear()
    whole = render.parts_of
    monkeypatch.setattr(
        render, "parts_of", lambda name, folder: whole(name, folder) - {"lib/mma/tensor_core.cuh.j2"}
    )
    changed = {n for n, d in digests.items() if render.template_digest(families()[n].template) != d}
    monkeypatch.undo()
    render.template_digest.cache_clear()
    assert changed == {n for n in digests if "lib/mma/tensor_core.cuh.j2" in whole(families()[n].template)}
    assert {"mma_spmm", "lane_stream_spmm"} <= changed and "csr_spmm" not in changed


def test_sources_name_no_builtin_that_only_some_compilers_have() -> None:
    """NVRTC knows __builtin_expect, but no __builtin_inff: INFINITY and __int_as_float do it everywhere."""
    for name in of_all_families():
        found = set(
            re.findall(
                r"__builtin_\w+", files("sparsegen.templates").joinpath(name).read_text(encoding="utf-8")
            )
        )
        assert found <= {"__builtin_expect"}, name


def of_all_families() -> set[str]:
    """All templates that any family renders."""
    return set().union(*(render.parts_of(family.template) for family in families().values()))
