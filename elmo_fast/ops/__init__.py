"""Floor 0: tensors to tensors. Every op has a reference, and faster backends with the same signature."""
