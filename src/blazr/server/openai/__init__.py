"""OpenAI's dialect: completions, chat completions, models."""
