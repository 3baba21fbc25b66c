"""Sphinx settings: Markdown pages (MyST), the Furo theme, nothing fetched from the network."""

from litebert import __version__

project = "litebert"
author = "the litebert authors"
release = __version__
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"litebert {release}"
exclude_patterns = ["_build"]
