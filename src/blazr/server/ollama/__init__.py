"""Ollama's dialect: models, generate, chat, embed."""
