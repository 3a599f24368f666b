"""Models of the engine that compute with PyTorch, on a GPU or the CPU: `model` of arrays, `of_bilm` of a module."""
