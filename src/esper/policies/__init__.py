"""Trained policies that ship with the package."""
