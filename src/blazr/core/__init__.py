"""What every package may use: errors, tables, environment, logging, metrics. No torch."""
