"""Parts that several commands share: options, tables, progress."""
