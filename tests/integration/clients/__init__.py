"""Real clients in environments of their own: the table, its installer, and their scripts."""
