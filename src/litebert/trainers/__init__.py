"""What learns: one file for each kind of training."""
