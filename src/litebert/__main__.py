"""`python -m litebert`."""

from litebert.cli import command

command()
