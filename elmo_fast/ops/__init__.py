"""Floor 0: functions of tensors. Every op has a reference and faster backends with the same signature."""
