"""The loop of a search: compile ahead, measure, record, name the winner."""
