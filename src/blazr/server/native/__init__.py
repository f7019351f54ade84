"""blazr's own endpoints: generate, tokens, status, cache."""
