"""What other libraries run for us, behind the engine's own face."""
