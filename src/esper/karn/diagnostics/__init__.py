"""Diagnostics: small functions from episodes to figures, one kind of question in each module."""
