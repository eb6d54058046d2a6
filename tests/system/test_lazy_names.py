"""Names of a package are imported when they are first used, from where its stub says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sparsegen import operators
from sparsegen.system import lazy_names

INIT = """
from sparsegen.system import lazy_names

_HOME = lazy_names.homes(__name__)


def __getattr__(name):
    return lazy_names.found(__name__, _HOME, name)
"""
STUB = '''"""What there is: from lazily.other import none."""

from lazily.first import one as one
from lazily.second import (
    a_name_that_needs_a_line_of_its_own as a_name_that_needs_a_line_of_its_own,
)
'''


def test_modules_are_imported_when_a_name_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lazily"
    package.mkdir()
    files = {"__init__.py": INIT, "__init__.pyi": STUB, "first.py": "one = object()\n"}
    files["second.py"] = "a_name_that_needs_a_line_of_its_own = 2\n"
    for name, text in files.items():
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import lazily

    assert set(lazy_names.homes("lazily")) == {"one", "a_name_that_needs_a_line_of_its_own"}
    assert "lazily.first" not in sys.modules
    assert lazily.one is lazily.one and "one" in vars(lazily)
    assert "lazily.second" not in sys.modules
    from lazily import a_name_that_needs_a_line_of_its_own as two

    assert two == 2
    with pytest.raises(AttributeError, match="'lazily' has no attribute 'none'"):
        _ = lazily.none
    for name in ("lazily", "lazily.first", "lazily.second"):
        monkeypatch.delitem(sys.modules, name)


def test_every_name_of_the_operators_is_where_the_stub_says() -> None:
    assert len(operators.__all__) > 50
    for name in operators.__all__:
        assert getattr(operators, name) is not None
    assert set(dir(operators)) == set(operators.__all__)
