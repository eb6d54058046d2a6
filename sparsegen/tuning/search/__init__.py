"""A search: its parts, which configs it knows and tries first, what it asks its sampler for; a search by prediction."""
