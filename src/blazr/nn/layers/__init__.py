"""Layers: mixers over tokens and feed-forwards over channels, each with its config."""
