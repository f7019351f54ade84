"""The server above the network, simulated: a seed decides time, order and faults."""
