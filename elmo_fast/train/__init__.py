"""Floor 2: a corpus to weights. Trains, resumes, fine-tunes, tests and exports bidirectional language models."""
