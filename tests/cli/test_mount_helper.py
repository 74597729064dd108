"""Starting at boot: a line of fstab becomes a mount command, and the unit of systemd is valid."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raidx_fuse.cli import mount_helper
from raidx_fuse.cli.mount_helper import WRONG_CALL, command_line
from raidx_fuse.errors import UsageError
from tests.docs.pages import ROOT


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("disk /mnt", "mount --name disk /mnt"),
        ("disk /mnt -o defaults,nofail,noatime,x-systemd.automount", "mount --name disk /mnt"),
        ("disk,more /mnt", "mount --name disk --name more /mnt"),
        ("8f3c,12ab /mnt -o by=uuid,ro", "mount --uuid 8f3c --uuid 12ab --read-only /mnt"),
        ("/srv/a,/srv/b /mnt -o degraded", "mount --start-degraded /srv/a /srv/b /mnt"),
        ("nbd://host/a,nbd://host/b /mnt -n", "mount nbd://host/a nbd://host/b /mnt"),
        ("disk /mnt -o scan=/a:/b", "mount --name disk --scan /a --scan /b /mnt"),
        ("d /mnt -o when_complete", "mount --name d --when-complete /mnt"),
        ("d /mnt -o degraded_after=9s", "mount --name d --degraded-after 9s /mnt"),
        ("-sv disk /mnt -o mode=640,allow_other", None),
        ("disk /mnt -t raidx -o nbd=unix:/run/s", "mount --name disk --nbd unix:/run/s /mnt"),
    ],
)
def test_a_line_of_fstab_becomes_one_command(line: str, expected: str | None) -> None:
    expected = expected or "mount --name disk --mode 640 --allow-other /mnt"
    assert command_line(line.split()) == expected.split()


def test_a_pretended_mount_mounts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mount.raidx", "disk", "/mnt", "-f"])
    with pytest.raises(SystemExit) as ended:
        mount_helper.main()
    assert ended.value.code == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("disk /mnt -o speed=9", "unknown mount option 'speed=9'"),
        ("disk", "a source and a mount point are needed"),
        ("disk /mnt more", "a source and a mount point are needed"),
        ("disk /mnt --fast", "unknown option '--fast'"),
    ],
)
def test_a_wrong_line_gets_one_line_and_the_status_of_mount(
    line: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError):
        command_line(line.split())
    monkeypatch.setattr(sys, "argv", ["mount.raidx", *line.split()])
    with pytest.raises(SystemExit) as ended:
        mount_helper.main()
    assert ended.value.code == WRONG_CALL
    assert words in capsys.readouterr().err


def test_the_unit_of_systemd_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing")
    unit = tmp_path / "raidx@disk.service"
    shutil.copy(ROOT / "examples" / "raidx@.service", unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "raidx" in line]) == (
        0,
        [],
    )
