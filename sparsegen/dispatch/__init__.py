"""Dispatch: the choice of the variant that runs, from a problem and what is known."""
