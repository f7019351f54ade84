"""Adapters of low rank: read from their files, planned by the model's own rules, put beside it."""
