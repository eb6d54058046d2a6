"""The last schema of before the first release, where migrations begin: new databases are made from the models."""

from __future__ import annotations

revision = "0006"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Does nothing: a database has this schema, or is new."""
