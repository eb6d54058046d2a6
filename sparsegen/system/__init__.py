"""The machine around the program: files that appear whole, child processes that answer messages."""
