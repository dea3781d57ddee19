"""Settings of Sphinx for `make docs`: the pages as GitHub shows them, and the docstrings, as a site."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "torchrlopt"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md"]
# Folders that need not be walked through; no page is in them.
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "docs"]
myst_heading_anchors = 4  # links lead to headings as on GitHub
suppress_warnings = ["misc.highlighting_failure"]  # GitHub draws mermaid; here it stays text
default_role = "code"  # in docstrings, a word between backticks
napoleon_use_ivar = True
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = project

_NAVIGATION = """
```{{toctree}}
:hidden:
:caption: {caption}

{pages}
```
"""
_REFERENCE = """
```{eval-rst}
.. automodule:: torchrlopt
   :members:
```
"""


def _complete(app: Sphinx, page: str, source: list[str]) -> None:
    """Adds to a page what GitHub would show as code: the navigation, and the reference."""
    if page == root_doc:
        listed = re.findall(r"^\| \[.*?\]\((\w+)\.md\)", _read("docs/README.md"), re.MULTILINE)
        documentation = ["docs/README", *(f"docs/{name}" for name in listed)]
        source[0] += _NAVIGATION.format(caption="Documentation", pages="\n".join(documentation))
        others = "\n".join(path.stem for path in sorted(ROOT.glob("*.md")) if path.stem != root_doc)
        source[0] += _NAVIGATION.format(caption="Project", pages=others)
    if page == "docs/api":
        source[0] += _REFERENCE


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _complete)
