"""Family + problem + config -> CUDA source, for us to compile or for others to publish."""

from sparsegen.render.sources import environment, parts_of, render, template_digest

__all__ = ["environment", "parts_of", "render", "template_digest"]
