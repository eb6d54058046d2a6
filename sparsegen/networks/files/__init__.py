"""Files of sparse networks."""
