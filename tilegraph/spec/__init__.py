"""Frozen dataclasses that the layers exchange."""
