"""Registries: what is published there, and which of it a host should run. Start with choose.py."""
