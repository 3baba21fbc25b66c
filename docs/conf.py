"""Sphinx settings: Markdown pages (MyST), the Furo theme, nothing fetched from the network."""

import sys
from pathlib import Path

from litebert import __version__

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "litebert"
author = copyright = "the litebert authors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "command_reference"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
default_role = "code"  # in docstrings `this` is code, as in Markdown
autodoc_member_order = "bysource"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
highlight_language = "none"  # blocks without a language are commands
html_theme = "furo"
html_title = f"litebert {release}"
html_static_path = ["static"]
html_css_files = ["litebert.css"]
exclude_patterns = ["_build", "extensions", "images", "static"]
