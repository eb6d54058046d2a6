"""Number of attempts of each target of the fuzz tests."""

ATTEMPTS: dict[str, int] = {}
