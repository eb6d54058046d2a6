"""Names in the documentation exist: commands and their options, links, names in the Python code."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import sparsegen
from sparsegen.cli.bundle import parser
from sparsegen.cli.main import COMMANDS, cli
from sparsegen.tuning_db.schema_versions import HEAD

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "examples" / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RESULT = re.compile(r"`([a-z0-9_]+\.json\.xz|(?:explored|ncu|sanitizer)_[a-z0-9_]+\.txt)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks(page: Path, *languages: str) -> Iterator[str]:
    for language, text in BLOCK.findall(page.read_text()):
        if language in languages:
            yield text


def commands(page: Path) -> Iterator[str]:
    """Every ``sparsegen ...`` that a page tells its reader to type, without pipes and redirections."""
    for text in blocks(page, "sh", "console"):
        for line in text.splitlines():
            words = line.removeprefix("$ ").split("#")[0].split("|")[0].split(">")[0].strip()
            if words.startswith("sparsegen "):
                yield words


def parse(line: str) -> click.Context:
    """Parse a command line and run nothing.

    Raises:
        click.UsageError: an unknown command or option, or a value that an option does not take.
    """
    command: click.Command = cli
    context = click.Context(cli, info_name="sparsegen")
    words = shlex.split(line)[1:]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, name := words.pop(0))
        if found is None:
            raise click.UsageError(f"no command {name!r}")
        command = found
        context = click.Context(command, info_name=name, parent=context)
    options = [word for word in words if word not in ("--help", "--version")]
    if isinstance(command, click.Group):
        assert not options, line
        return context
    try:
        return command.make_context(command.name, options, parent=context)
    finally:
        context.find_root().close()  # ends what --verbose began


COMMAND_LINES = sorted({(page.name, line) for page in PAGES for line in commands(page)})


@pytest.mark.parametrize(("page", "line"), COMMAND_LINES)
def test_commands_parse(page: str, line: str) -> None:
    try:
        parse(line)
    except click.ClickException as error:
        pytest.fail(f"{page}: {line}: {error.format_message()}")


def test_wrong_commands_do_not_parse() -> None:
    for line in (
        "sparsegen tuen",
        "sparsegen tune --matrix w.npz --trails 3",
        "sparsegen tune -n 0 --matrix w.npz",
    ):
        with pytest.raises(click.UsageError):
            parse(line)


def test_every_command_is_documented() -> None:
    shown = {line.split()[1] for page, line in COMMAND_LINES if page == "cli.md"}
    assert set(COMMANDS) <= shown
    database = cli.get_command(click.Context(cli), "db")
    assert isinstance(database, click.Group)
    subcommands = {line.split()[2] for page, line in COMMAND_LINES if line.startswith("sparsegen db ")}
    assert set(database.commands) <= subcommands


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for link in LINK.findall(BLOCK.sub("", page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_results_that_a_page_names_are_committed(page: Path) -> None:
    committed = {file.name for file in (ROOT / "benchmarks").rglob("*")}
    assert set(RESULT.findall(BLOCK.sub("", page.read_text()))) <= committed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_code_is_python(page: Path) -> None:
    for text in blocks(page, "python"):
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "sparsegen"
            ):
                assert hasattr(sparsegen, node.attr), f"sparsegen.{node.attr}"


def test_the_schema_that_is_shown_is_the_newest() -> None:
    shown = {number for page in PAGES for number in re.findall(r"schema (\d{4})", page.read_text())}
    assert shown == {HEAD}


def test_what_bundles_are_told_is_what_they_take() -> None:
    """The commands that a page shows for a bundle's own Python."""
    page = ROOT / "docs" / "bundles.md"
    lines = [
        line for text in blocks(page, "console") for line in text.splitlines() if line.startswith("$ python ")
    ]
    assert {shlex.split(line)[3] for line in lines} == {"info", "verify", "run"}
    for line in lines:
        _, _, bundle, *words = shlex.split(line)
        assert parser(bundle).parse_args(words).do
    with pytest.raises(SystemExit):
        parser("layer.pyz").parse_args(["run", "--outt", "x"])
