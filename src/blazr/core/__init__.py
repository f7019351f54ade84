"""What every package may use: errors, tables, environment, logging. No torch, no third party."""
