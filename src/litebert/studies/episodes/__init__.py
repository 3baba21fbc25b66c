"""`litebert evaluate --episodes`: ways to learn from a few examples, compared on the same small tasks."""
