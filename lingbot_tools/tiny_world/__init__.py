"""A small world to learn from, and the training of the embedded weights on it."""
