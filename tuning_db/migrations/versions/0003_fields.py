"""A problem's fields are canonical JSON, found by a digest, so that operators have whatever fields they need."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NO_FIELD: dict[str, Any] = {  # what stood in the column of a field that an operator's problems do not have
    "m": 0,
    "k": 0,
    "n": 0,
    "dtype": "",
    "layout": "",
    "epilogue": "",
    "batch": 1,
    "item_values": "",
}
FIELDS = {  # of the operators that there were, but for batch and item_values
    "spmm": {"m", "k", "n", "dtype", "layout", "epilogue"},
    "sddmm": {"m", "n", "k", "dtype", "epilogue"},
    "sparse_softmax": {"m", "n", "dtype"},
    "sparse_softmax_backward": {"m", "n", "dtype"},
    "sparse_attention": {"m", "n", "k", "dtype"},
}
LEFT_OUT = {"batch": 1, "item_values": "shared"}  # defaults of fields that files of before do not have


def upgrade() -> None:
    with op.batch_alter_table("problems") as problems:
        problems.add_column(sa.Column("fields", sa.Text(), nullable=False, server_default=""))
        problems.add_column(sa.Column("digest", sa.CHAR(64), nullable=False, server_default=""))
    convert(op.get_bind())
    with op.batch_alter_table("problems") as problems:
        problems.drop_constraint("uq_problems", type_="unique")
        for name in NO_FIELD:
            problems.drop_column(name)
        problems.alter_column("fields", existing_type=sa.Text(), server_default=None)
        problems.alter_column("digest", existing_type=sa.CHAR(64), server_default=None)
        problems.create_unique_constraint("uq_problems", ["digest"])


def convert(connection: sa.Connection) -> None:
    table = sa.table(
        "problems", *(sa.column(name) for name in ("id", "operator", "fields", "digest", *NO_FIELD))
    )
    for row in connection.execute(sa.select(table)).mappings().all():
        operator = row["operator"]
        # What an operator's problems did not have is kept where it says something: such a row stays what it was, one
        # that sparsegen would not write, and no two rows become the same.
        fields = {
            name: row[name]
            for name in NO_FIELD
            if row[name] != LEFT_OUT.get(name)
            and (name in FIELDS.get(operator, ()) or row[name] != NO_FIELD[name])
        }
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(f"{operator} {text}".encode()).hexdigest()
        connection.execute(sa.update(table).where(table.c.id == row["id"]).values(fields=text, digest=digest))
