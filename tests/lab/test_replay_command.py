"""`raidx replay`: what is refused before anything is touched, and how results read.

Replays on real mounts are in tests/mount/test_replay.py.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from rich.console import Console

from raidx_fuse.cli.commands.experiments import replay_page, round_section
from raidx_fuse.cli.main import main
from raidx_fuse.cli.output import Output
from raidx_fuse.errors import Reason, SignatureFoundError
from raidx_fuse.lab.loads.drive import Content, Image, Recorder, drive, read_back
from raidx_fuse.lab.loads.request import fit
from raidx_fuse.lab.loads.workloads import generate
from tests.support.reasons import because

SIZE = 1 << 20


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nothing", "."], "'nothing' is neither a file nor a generated load"),
        (["uniform", ".", "--speed", "0"], "speed and rate are above 0"),
        (["uniform", ".", "--rate=-1"], "speed and rate are above 0"),
        (["uniform", ".", "--number", "read_share"], "write NAME=VALUE"),
        (["uniform", ".", "--number", "reads=1"], "no number 'reads'"),
        (["bad.spc", "."], "bad.spc: neither an SPC nor"),
        (["bad.spc", ".", "--number", "cv=2"], "its numbers cannot be chosen"),
        (["uniform", "."], "no array is mounted"),
        (["uniform", ".", "--depth", "0"], "--depth"),
        (["uniform", ".", "--fit", "squeeze"], "--fit"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    words: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.spc").write_text("hello\n")
    done = CliRunner().invoke(main, ["replay", *words])
    assert done.exit_code in (1, 2)
    (line,) = done.stderr.splitlines()
    assert complaint in line


def test_sections_are_round() -> None:
    assert [round_section(seconds) for seconds in (0.0, 2.9, 8, 100, 604800)] == [
        *(0, 0.5, 1, 10, 1e5),
    ]


def replayed(path: Path) -> tuple[Recorder, Content]:
    """Drive a load at full speed against a plain file, as a mounted image would be."""

    async def run() -> tuple[Recorder, Content]:
        image, recorder, content = Image(str(path), threads=4), Recorder(), Content(SIZE)
        try:
            await image.check_unused()
            load = fit(generate("hm_0", requests=300), image.size_bytes)
            await drive(image, load, recorder, depth=8, content=content)
            await image.flush()
            await read_back(image, content)
        finally:
            image.close()
        return recorder, content

    return trio.run(run)


def test_a_plain_file_can_be_driven_and_the_result_read(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(SIZE))
    recorder, content = replayed(path)
    assert (len(recorder), recorder.failed, content.wrong) == (300, 0, [])
    assert content.checked_bytes > 100_000
    printed = StringIO()
    console = Console(width=120, file=printed)
    document = {
        **recorder.summary(),
        "failed": 1,
        "errors": ["disk0: write failed"],
        "held_back": 2,
        "array": {"pre_reads": 7},
        "sections": recorder.sections(recorder.end_s / 3),
        "verified_bytes": 4096,
        "wrong": ["image offset 0: expected ..."],
    }
    console.print(replay_page(document, Output()))
    text = printed.getvalue()
    for words in ("300 requests", "pre reads 7", "2 requests held back", "WRONG", "1 failed"):
        assert words in text


def test_a_file_system_on_the_image_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "image"
    content = bytearray(SIZE)
    content[0x438:0x43A] = b"\x53\xef"
    path.write_bytes(content)
    with pytest.raises(SignatureFoundError, check=because(Reason.SIGNATURE_FOUND)):
        replayed(path)
    assert path.read_bytes() == content
