"""What several commands share: options, tables, progress."""
