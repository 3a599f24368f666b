"""Floor 0: text to ids."""
