"""Location of a tuning database. SQLAlchemy, slow to import, is asked only about URLs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sparsegen.errors import DatabaseError
from sparsegen.settings import absolute

if TYPE_CHECKING:
    from sqlalchemy.engine import URL


class Location(NamedTuple):
    """Location of a database: a SQLite file, or the URL of a server."""

    path: Path | None
    url: URL | None

    @classmethod
    def parse(cls, text: str | Path) -> Location:
        """The place that a path or a SQLAlchemy URL names (``sqlite:///file``, ``postgresql://user@host/name``)."""
        if isinstance(text, Path) or "://" not in text:
            return cls(absolute(Path(text)), None)
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            url = make_url(text)
        except (ArgumentError, ValueError):
            raise DatabaseError(
                "the database's URL cannot be read; write a path or dialect://user@host/name"
            ) from None
        if url.get_backend_name() == "sqlite":
            if not url.database or url.database == ":memory:":
                raise DatabaseError("a SQLite URL must name a file, as in sqlite:///tuning.db")
            return cls(absolute(Path(url.database)), None)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        return cls(None, url)

    def __str__(self) -> str:
        """The path, or the URL without its password, for messages."""
        return str(self.path) if self.url is None else self.url.render_as_string(hide_password=True)
