"""Memory for every layer kind: pages that grow with a sequence, checkpoints of its state."""
