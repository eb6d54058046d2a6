"""Participants of a row: baselines, their inputs, and their processes' devices."""
