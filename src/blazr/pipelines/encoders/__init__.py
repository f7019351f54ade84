"""Models that make vectors or labels of texts, as transformers runs them."""
