"""Anthropic's dialect: messages and their tokens."""
