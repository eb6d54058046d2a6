"""How a row's sparse input is drawn."""
