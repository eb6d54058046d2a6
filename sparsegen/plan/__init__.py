"""A matrix bound to its variant: packed, uploaded, launched; and the objects that users call."""
