"""Models over HTTP: a queue that makes batches, limits, and a page to play with."""
