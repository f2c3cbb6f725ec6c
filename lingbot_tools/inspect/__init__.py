"""What a checkpoint holds and what it needs, without loading a weight."""
