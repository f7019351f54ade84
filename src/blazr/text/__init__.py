"""From messages to tokens and back. No torch, no engine."""
