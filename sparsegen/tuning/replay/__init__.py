"""Recorded searches: what they hold, their replay, the importance of tunables."""
