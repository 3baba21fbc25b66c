"""Learning to learn from a few examples."""
