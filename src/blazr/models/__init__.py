"""From a path to a network ready to run."""
