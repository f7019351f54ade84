"""The mathematics: devices, operations and layers. Knows nothing of text, files or requests."""
