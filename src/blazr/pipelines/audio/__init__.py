"""Sound: speech to text, and what it needs."""
