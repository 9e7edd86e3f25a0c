"""Contracts that every part shares: stages, actions, observations, events, errors, and how they are written down."""
