"""The ways in which models write calls of tools."""
