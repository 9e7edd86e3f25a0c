"""Attaching slots to a model: what fits where, which places to propose, and a checker for models of one's own."""
