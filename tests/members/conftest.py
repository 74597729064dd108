"""A member file for the tests of local members."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raidx_fuse.members.local import LocalMember, create_file

SIZE_BYTES = 4 << 20


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "disk.img")
    create_file(path, SIZE_BYTES)
    return path


@pytest.fixture
def member(path: str) -> Iterator[LocalMember]:
    member = LocalMember(path, reads_zero=True)
    yield member
    member.close()
