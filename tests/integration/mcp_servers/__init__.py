"""Servers and clients of MCP that others have written, each in an environment of its own."""
