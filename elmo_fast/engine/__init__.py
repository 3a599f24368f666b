"""Sentences to arrays, without torch: a model that does not change, its token vectors, slots and streams."""
