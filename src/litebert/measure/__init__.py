"""Baselines, plots, reports. A leaf: nothing here knows a model."""
