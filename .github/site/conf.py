"""The pages of the project as a site, with search and the reference of the Python interface.

    python -m sphinx -W -c .github/site . build/site

The pages are those in the tree: none is written for the site, and a link that leads nowhere ends
the build. What they link to beside them, source files for instance, is copied.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))

from raidx_fuse.version import VERSION  # noqa: E402

project = "raidx-fuse"
author = copyright = "The RAIDX-FUSE developers"
version = release = VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"  # with the contents below
include_patterns = [
    *("README.md", "cli/MANUAL.md", "raidx_fuse/*.md", "bench/README.md", "bench/figures/*.md"),
    *("examples/*.md", "examples/lab/*.md", "examples/own-code/*.md", "tests/crash/*.md"),
    *(".github/*.md", ".github/site/python.md"),
]
exclude_patterns = ["build", ".venv*", ".git", "raidx_fuse/cli", "raidx_fuse/layouts"]

myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

html_theme = "furo"
html_title = f"raidx {VERSION}"
html_show_sourcelink = False


CONTENTS = Path(__file__).with_name("contents.txt").read_text()
FRONT = (
    '<!doctype html><title>raidx</title><meta http-equiv="refresh" content="0; url=README.html">\n'
)


def add_contents(_app: Sphinx, name: str, source: list[str]) -> None:
    """Give the front page, which is the README, the list of all pages."""
    if name == root_doc:
        source[0] += "\n" + CONTENTS


def write_front(app: Sphinx, error: Exception | None) -> None:
    """Let the site's address lead to its front page."""
    if error is None:
        (Path(app.outdir) / "index.html").write_text(FRONT)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_contents)
    app.connect("build-finished", write_front)
