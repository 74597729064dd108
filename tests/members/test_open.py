"""Member specs and sizes, as a user writes them."""

from __future__ import annotations

import doctest
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raidx_fuse import units
from raidx_fuse.errors import BusyError, Reason, UsageError
from raidx_fuse.members.local import LocalMember
from raidx_fuse.members.open import create_member, open_member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.model import ModelMember
from raidx_fuse.members.spec import parse_spec, path_of
from raidx_fuse.units import format_size, parse_size
from tests.support.reasons import because


def test_a_spec_is_taken_apart() -> None:
    spec = parse_spec("a, b=c/disk,1.img,model=hdd,seek_ms=4,size=1G")
    assert spec.path == "a, b=c/disk,1.img"
    assert (spec.model, spec.numbers, spec.size_bytes) == ("hdd", {"seek_ms": "4"}, 1 << 30)
    assert parse_spec("disk.img").path == path_of("disk.img") == "disk.img"
    ram = parse_spec("ram:64MiB,model=ssd")
    assert (ram.is_ram, ram.size_bytes, ram.model) == (True, 64 << 20, "ssd")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no path"),
        ("ram:", "is not a size"),
        ("ram:0", "multiple of 512"),
        ("ram:1000", "multiple of 512"),
        ("ram:1M,size=2M", "after the colon"),
        ("d,size=100", "multiple of 512"),
        ("d,model=floppy", "no disk model 'floppy'"),
        ("d,model=hdd,seek=1", "no model number 'seek'"),
        ("d,model=hdd,name=x", "no model number 'name'"),
        ("d,model=hdd,model=ssd", "given twice"),
        ("d,seek_ms=3", "seek_ms= needs model="),
        ("d,model=", "not of the form key=value"),
        ("d,model=hdd,fast", "not of the form key=value"),
    ],
)
def test_a_bad_spec_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_spec(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_memory_has_no_path() -> None:
    with pytest.raises(UsageError, match="gone with the command"):
        path_of("ram:1M")


def test_opening_files_memory_and_models(tmp_path: Path) -> None:
    path = str(tmp_path / "disk.img")
    with pytest.raises(UsageError, match="needs a size"):
        create_member(path)
    made = create_member(f"{path},size=1M", 2 << 20)
    assert isinstance(made, LocalMember)
    assert (made.size_bytes, made.reads_zero) == (1 << 20, True)
    with pytest.raises(BusyError):
        open_member(path)
    made.close()
    with pytest.raises(UsageError, check=because(Reason.EXISTS)):
        create_member(path, 1 << 20)
    modelled = open_member(f"{path},model=hdd", read_only=True)
    assert isinstance(modelled, ModelMember)
    assert (modelled.path, modelled.read_only, modelled.reads_zero) == (path, True, False)
    modelled.close()
    memory = create_member("ram:64K")
    assert isinstance(memory, RamMember)
    assert memory.size_bytes == 65536
    assert os.listdir(tmp_path) == ["disk.img"]


def test_modelled_members_differ_but_runs_do_not() -> None:
    def first_end_s(text: str) -> float:
        member = open_member(text)
        assert isinstance(member, ModelMember)
        member.queue.submit(0.0, False, 1 << 19, 4096)
        return member.queue.submit(0.0, False, 0, 4096)  # back again: seek and rotation

    assert first_end_s("ram:1M,model=hdd") == first_end_s("ram:1M,model=hdd")
    assert first_end_s("ram:1M,model=hdd") != first_end_s("ram:1024K,model=hdd")


def test_the_examples_of_sizes() -> None:
    assert doctest.testmod(units).failed == 0


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("512", 512),
        ("512B", 512),
        ("64k", 65536),
        ("64KB", 64000),
        ("1 TiB", 1 << 40),
        ("0.5G", 1 << 29),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "K", "-1", "1,5G", "1e3", "0x10", "5Q", "1.0001K", "1 2", "\u0661"]
)
def test_bad_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


@given(st.integers(0, 1 << 62))
def test_formatted_sizes_are_right_to_three_digits(size_bytes: int) -> None:
    number, unit = format_size(size_bytes).split()
    again = float(number) * parse_size(f"1{unit}")
    assert abs(again - size_bytes) <= size_bytes * 0.0051
    assert len(number.replace(".", "")) <= 4
