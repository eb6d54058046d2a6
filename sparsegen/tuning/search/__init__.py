"""A search: which configs it knows, tries first, and asks its sampler for."""
