"""Comparing what this implementation computes with stored expectations."""
