"""Indexes of vectors, and the nearest ones in them."""
