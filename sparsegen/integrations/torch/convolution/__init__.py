"""Masked convolutions, and layers of them."""
