"""What takes part in a row: baselines, their inputs, and where they work."""
