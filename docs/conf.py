"""Sphinx settings: Markdown pages (MyST), the Furo theme, nothing fetched from the network."""

import sys
from pathlib import Path
from typing import Any

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
autodoc_preserve_defaults = True
smartquotes = False  # which makes one dash of the two of a flag
highlight_language = "none"  # blocks without a language are commands
html_theme = "furo"
html_title = f"litebert {release}"
html_static_path = ["static"]
html_css_files = ["litebert.css"]
html_js_files = ["litebert.js"]
exclude_patterns = ["_build", "extensions", "images", "static"]


def set_language(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """So that browsers read, hyphenate and draw the Chinese pages as Chinese."""
    if page.startswith("zh/"):
        context["language"] = "zh-CN"


def setup(app: Any) -> None:
    app.connect("html-page-context", set_language)
