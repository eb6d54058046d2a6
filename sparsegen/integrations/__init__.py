"""sparsegen inside other frameworks, a package for each; none is imported by the rest of sparsegen."""
