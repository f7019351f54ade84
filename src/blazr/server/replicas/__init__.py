"""Several processes with an engine each behind one port: chosen, kept alive, told the same."""
