"""Defaults of options from files: what wins, and what is refused, in one line; `raidx rename`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raidx_fuse.cli import defaults
from tests.support.command import invoke


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose files stand for /etc/raidx.conf and the user's own."""
    monkeypatch.setattr(defaults, "SYSTEM", tmp_path / "raidx.conf")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(defaults.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raidx").mkdir()
    return tmp_path


def create(*options: str) -> dict[str, str]:
    """Return what `create --dry-run` of three members would do."""
    members = [f"disk{number}.img" for number in range(4)]
    done = invoke("create", *members, "--size", "8MiB", "--dry-run", "--json", *options)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_the_command_line_wins_over_the_users_file_and_that_over_etc(home: Path) -> None:
    assert "raid5" not in create("--layout", "raid0")["does"]
    (home / "raidx.conf").write_text('[create]\nlayout = "raid5"\nchunk = "4KiB"\n')
    assert "raid5" in create()["does"]
    (home / "raidx" / "config.toml").write_text('[create]\nlayout = "rdp"\n')
    assert "rdp" in create()["does"]
    assert "raid1" in create("--layout", "raid1")["does"]
    assert invoke("create", "--help").exit_code == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[create", "config.toml: "),
        ("\x00", "config.toml: "),
        ('[creat]\nlayout = "raid5"', "[creat], which is no command"),
        ('layout = "raid5"', "[layout], which is no command"),
        ('[create]\nlayuot = "raid5"', "[create] layuot, which is no option"),
        ("[create]\noverwrite-signature = true", "by hand"),
        ("[create]\nlayout = true", "wrong type"),
        ("[create]\nlayout = [1]", "wrong type"),
        ('[create]\nlayout = "raid77"', "raid77"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(home: Path, text: str, words: str) -> None:
    (home / "raidx" / "config.toml").write_text(text)
    done = invoke("create", "a.img", "b.img", "c.img", "--size", "8MiB", "--dry-run")
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(home.glob("*.img"))


def test_one_file_instead_of_both_or_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "raidx.conf").write_text("[nonsense]\n")
    monkeypatch.setenv(defaults.VARIABLE, str(home / "own"))
    assert invoke("layout", "list").exit_code == 2
    (home / "own").write_text('[create]\nlayout = "raid4"\n')
    assert "raid4" in create()["does"]
    monkeypatch.setenv(defaults.VARIABLE, "")
    assert "raid5" in create("--layout", "raid5")["does"]


def test_rename(home: Path) -> None:
    members = [f"{home}/disk{number}.img" for number in range(3)]
    made = ["create", *members, "--layout", "raid5", "--size", "8MiB", "--name", "old"]
    assert invoke(*made).exit_code == 0
    done = invoke("rename", *members[:2], "new")
    assert done.exit_code == 2
    assert "role 2 is missing" in done.stderr
    assert invoke("rename", *members, "a/b").exit_code != 0
    done = invoke("rename", *members, "new", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["old"] == "old"
    status = json.loads(invoke("status", *members, "--json").stdout)
    assert status["name"] == "new"
    assert status["state"] == "clean"
