"""Stages that only take time. Nothing here is a model, and nothing it makes is a picture."""
