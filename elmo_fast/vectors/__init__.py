"""Floor 1: files of vectors."""
