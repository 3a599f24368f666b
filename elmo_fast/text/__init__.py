"""Floor 0: text to ids. Knows nothing of models or tensors' later fate."""
