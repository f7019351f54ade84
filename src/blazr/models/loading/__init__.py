"""Loading: plan from the headers first, then read."""
