"""Floor 2: sentences to arrays and files."""
