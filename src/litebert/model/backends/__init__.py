"""Ways to run the passes of an encoder, beside the plain loop of `albert.py`."""
