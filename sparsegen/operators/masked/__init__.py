"""Products with block masks that every call brings: the masks' problem, and an operator a module."""
