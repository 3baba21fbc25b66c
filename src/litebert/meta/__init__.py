"""Meta-learning: training an encoder for few-shot classification on episodes."""
