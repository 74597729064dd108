"""The program that draws the manual's picture of `raidx watch` runs, and the picture is offline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[3]
PICTURE_BYTES_MAX = 60_000


def words_of(picture: str) -> str:
    """Return the text in an SVG; raises ParseError unless it is one."""
    root = ElementTree.fromstring(picture)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return " ".join("".join(root.itertext()).split())


def test_the_picture_can_be_drawn_again_and_loads_nothing() -> None:
    program = ROOT / "examples" / "watch_picture.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for picture in (done.stdout, (ROOT / "cli" / "watch.svg").read_text()):
        assert len(picture.encode()) < PICTURE_BYTES_MAX
        assert "url(http" not in picture
        words = words_of(picture)
        for shown in ("rebuilding", "raid5", "1 rebuild ━", "unwritten", "/srv/disk0.img"):
            assert shown in words.replace("\xa0", " ")
