"""Faults made on purpose, and what must hold after each of them."""
