"""The tag ``{% includes "lib/copy/vector", "lib/mma/swizzle" %}``: files of device functions, one after the other."""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from sparsegen.render.references import SUFFIX


class Includes(Extension):
    """Includes each named file as ``{% include %}`` does, and writes an empty line between them.

    Names leave out the suffix that all these files have.
    """

    tags = {"includes"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        found: list[nodes.Node] = []
        while not found or parser.stream.skip_if("comma"):
            if found:
                found.append(nodes.Output([nodes.TemplateData("\n")], lineno=line))
            name = nodes.Const(parser.stream.expect("string").value + SUFFIX)
            found.append(nodes.Include(name, True, False, lineno=line))
        return found
