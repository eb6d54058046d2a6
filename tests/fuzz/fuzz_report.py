"""How many attempts each target of the fuzz tests got."""

ATTEMPTS: dict[str, int] = {}
