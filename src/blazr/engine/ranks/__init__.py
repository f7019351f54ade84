"""One model over several processes: this one, the first rank, and those that do as it says."""
