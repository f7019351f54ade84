"""The Python API: text and engine joined."""
