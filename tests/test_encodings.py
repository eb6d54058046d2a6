"""Files are read and written in the encoding that the code says, and output is printed in whatever the locale has."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from test_architecture import ROOT

PACKAGES = ("sparsegen", "cli", "tuning_db", "templates", "docs", "examples")
TEXT_IN_A_FILE = {"read_text", "write_text"}
OPENED = {"open", "fdopen", "NamedTemporaryFile", "TemporaryFile"}
STARTED = {"run", "Popen", "check_output", "check_call"}
ZIP_ALONE = "force_zip64"  # an option of `zipfile.ZipFile.open`, which opens no text
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def texts_without_encoding(source: str) -> list[str]:
    """The calls that read or write text and leave its encoding to the locale."""
    return [ast.unparse(node) for node in ast.walk(ast.parse(source)) if _is_without(node)]


def _is_without(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    owner = called.value if isinstance(called, ast.Attribute) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    if "encoding" in given:
        return False
    if name in TEXT_IN_A_FILE:  # functions of ours of these names are called on no object
        return owner is not None
    if name in STARTED:
        return bool({"text", "universal_newlines"} & {*given})
    if name not in OPENED or ZIP_ALONE in given:
        return False
    values = [*node.args[:2], *filter(None, [given.get("mode")])]
    texts = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
    modes = [text for text in texts if text and {*text} <= {*"rwaxbt+"}]
    if modes:
        return "b" not in modes[-1]
    return name == "fdopen" or (name == "open" and owner is None)


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("path.read_text()", True),
        ("path.read_text(encoding='ascii')", False),
        ("path.write_text(text, errors='replace')", True),
        ("open(path)", True),
        ("open(path, 'rb')", False),
        ("path.open('w')", True),
        ("path.open('ab')", False),
        ("os.fdopen(number)", True),
        ("os.fdopen(number, 'w+b')", False),
        ("tempfile.NamedTemporaryFile('w')", True),
        ("tempfile.NamedTemporaryFile()", False),
        ("subprocess.run(words, text=True)", True),
        ("subprocess.run(words, encoding='utf-8')", False),
        ("store.open(place)", False),
        ("archive.open(name, 'w', force_zip64=True)", False),
        ("axes.annotate(text=1)", False),
        ("read_text(path, 10)", False),
    ],
)
def test_the_rule_finds_what_it_is_for(source: str, is_found: bool) -> None:
    assert bool(texts_without_encoding(source)) is is_found


@pytest.mark.parametrize("package", PACKAGES)
def test_every_text_says_its_encoding(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    found = {path: texts_without_encoding(path.read_text(encoding="utf-8")) for path in files}
    assert files and not {path: texts for path, texts in found.items() if texts}


def sparsegen(*words: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "sparsegen", *words],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, "SPARSEGEN_DEVICE": "emulator", **environment},
        check=False,
    )


@pytest.fixture(scope="session")
def japanese(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a locale whose encoding is none of Unicode's: EUC-JP."""
    folder = tmp_path_factory.mktemp("locales")
    localedef = shutil.which("localedef")
    if localedef is None:
        pytest.skip("no localedef")
    command = [localedef, "-i", "ja_JP", "-f", "EUC-JP", str(folder / "ja_JP.EUC-JP")]
    subprocess.run(command, capture_output=True, check=False)  # it warns where all is well
    if not (folder / "ja_JP.EUC-JP").exists():
        pytest.skip("this machine has not the sources of that locale")
    return {**ASCII, "LOCPATH": str(folder), "LC_ALL": "ja_JP.EUC-JP"}


@pytest.mark.parametrize("words", [["families", "csr_spmm"], ["--help"], ["families"]])
@pytest.mark.parametrize("encoding", ["ascii", "euc_jp", "latin-1", "gb18030"])
def test_output_has_question_marks_for_what_cannot_be_encoded(words: list[str], encoding: str) -> None:
    done = sparsegen(*words, environment={**ASCII, "PYTHONIOENCODING": encoding})
    assert done.returncode == 0, done.stderr.decode()
    done.stdout.decode("utf-8" if encoding == "ascii" else encoding)  # click takes ASCII for a mistake


def _tune(folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    matrix = str(ROOT / "examples" / "pruned_mlp_layer.npz")
    options = ["--trials", "2", "--db", str(folder / "é.db")]
    place = {"SPARSEGEN_CACHE": str(folder / "caché")}  # nothing is compiled yet, and its name is no ASCII
    return sparsegen("tune", "--matrix", matrix, "-n", "16", *options, environment={**environment, **place})


def test_a_search_where_the_encoding_is_ascii(tmp_path: Path) -> None:
    done = _tune(tmp_path, ASCII)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    assert b"problem" in done.stdout


def test_a_search_where_the_encoding_is_japanese(tmp_path: Path, japanese: Mapping[str, str]) -> None:
    done = _tune(tmp_path, japanese)
    assert done.returncode == 0, done.stderr.decode("euc_jp", "replace")
    done.stdout.decode("euc_jp")
