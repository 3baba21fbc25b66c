"""One file per command: a `Config` dataclass and `run(config)`.

Heavy imports stand inside `run`, so that `--help` answers at once.
"""
