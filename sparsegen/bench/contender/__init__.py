"""What takes part in a row: contenders, their inputs, and where they work."""
