"""The group `raidx layout` with all its commands."""

from __future__ import annotations

from raidx_fuse.cli.commands.layout import costs, growth, recover, show
from raidx_fuse.cli.commands.layout.group import layout

__all__ = ["costs", "growth", "layout", "recover", "show"]
