"""Clients that do everything wrong, against a real server whose frames say where they belong."""
