"""Floor 1: options and weights to layers of representations."""
