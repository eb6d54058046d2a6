"""What families share: how matrices are laid out, tasks cut, and limits kept."""
