"""`litebert reproduce`: the experiments of the ALBERT paper, on a budget of your own."""
