"""Recorded searches as studies, and the importance of tunables."""
