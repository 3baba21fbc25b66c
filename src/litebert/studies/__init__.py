"""Experiments made of many runs: the paper's, the benchmark, the demo."""
