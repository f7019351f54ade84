"""GGUF: the same models under other keys and tensor names."""
