"""Hugging Face decoders: one config reader and one list of names, as differences from Llama."""
