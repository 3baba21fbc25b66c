"""One loop and what it needs. Knows nothing of ALBERT."""
