"""Whether a member lies on a rotating disk."""

from __future__ import annotations

import builtins
import io
import os
import stat
from typing import Any

import pytest

from raidx_fuse.members import kernel_files
from raidx_fuse.members.base import WrapperMember
from raidx_fuse.members.open import open_member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import model_member


@pytest.mark.parametrize(
    ("place", "text", "expected"),
    [
        ("/sys/dev/block/8:3/queue/rotational", "1\n", True),
        ("/sys/dev/block/8:3/../queue/rotational", "0\n", False),  # a partition
        ("/sys/dev/block/8:4/queue/rotational", "1\n", None),
    ],
)
@pytest.mark.parametrize("block", [False, True])
def test_the_kernel_says_so_of_the_device(
    monkeypatch: pytest.MonkeyPatch, block: bool, place: str, text: str, expected: bool | None
) -> None:
    def opened(path: str, *_: Any, **__: Any) -> io.BytesIO:
        if path != place:
            raise FileNotFoundError(path)
        return io.BytesIO(text.encode())

    device = os.makedev(8, 3)
    mode, rdev, dev = (stat.S_IFBLK, device, 5) if block else (stat.S_IFREG, 5, device)
    fields = (mode, 1, dev, 1, 0, 0, 0, 0, 0, 0, *[0] * 6, 0, 0, rdev)
    monkeypatch.setattr(builtins, "open", opened)
    status = os.stat_result(fields, {"st_dev": dev, "st_rdev": rdev})
    assert kernel_files.rotates(status) is expected


def test_members_that_the_kernel_does_not_know_are_unknown_and_models_know() -> None:
    assert RamMember(4096).rotates is None
    assert model_member(4096, "ram").rotates is None
    assert model_member(4096, "hdd").rotates is True
    assert WrapperMember(model_member(4096, "nvme")).rotates is False


def test_a_file_is_opened_wherever_it_lies(tmp_path: Any) -> None:
    path = tmp_path / "disk"
    path.write_bytes(bytes(1 << 16))
    member = open_member(str(path))
    assert member.rotates in (None, True, False)
    member.close()
