"""`litebert bench`: speed and memory beside transformers."""
