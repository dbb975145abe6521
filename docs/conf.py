"""The site of the documentation: `make docs` builds it with Sphinx from the Markdown files here."""

import re

from sphinx.application import Sphinx

project = "Continuo"
author = "The Continuo authors"
html_title = "Continuo"

extensions = ["myst_parser", "sphinx_copybutton", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md"]
"""The index for readers of the repository; that of the site is index.md."""
html_theme = "furo"
highlight_language = "text"

myst_enable_extensions = ["attrs_inline", "html_image", "deflist"]
myst_heading_anchors = 4
"""Links to headings, as GitHub writes them, are checked."""
myst_fence_as_directive = ["mermaid"]

suppress_warnings = ["misc.highlighting_failure"]
"""Examples of JSON contain an ellipsis where text is left out."""


def _name_files_of_the_repository(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Write the name of a file outside of docs in place of a link, which leads nowhere here."""
    up = "../" * (docname.count("/") + 1)
    link = re.compile(rf"\[([^\]]+)\]\({re.escape(up)}([^)]+)\)")
    source[0] = link.sub(lambda found: f"{found[1]} (`{found[2]}` in the repository)", source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", _name_files_of_the_repository)
