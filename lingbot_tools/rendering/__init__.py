"""Reference documentation, rendered from the contracts."""
