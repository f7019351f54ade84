"""Token ids in, token ids out. Knows nothing of text."""
