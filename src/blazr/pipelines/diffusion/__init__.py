"""Models that make images, as diffusers runs them."""
