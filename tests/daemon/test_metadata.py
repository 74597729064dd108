"""The configurations that a daemon keeps: the last ten, whole, and never at the array's cost."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from raidx_fuse.array.array import Array
from raidx_fuse.array.open import open_array
from raidx_fuse.daemon import metadata
from raidx_fuse.daemon.metadata import KEPT, REFRESH_S, MetadataFiles, MetadataKeeper, parted
from raidx_fuse.errors import RaidxError, Reason
from raidx_fuse.format.saved_metadata import Saved, to_document
from tests.support.arrays import ram_array
from tests.support.reasons import because


@asynccontextmanager
async def keeping(folder: Path) -> AsyncIterator[Array]:
    """Run an array whose configurations are kept in *folder*, as serve.py does."""
    members = await ram_array("raid5", 3)
    keeper = MetadataKeeper(MetadataFiles(folder), lambda: 7)
    async with open_array(members) as array:
        keeper.begin(array)
        array.nursery.start_soon(keeper.run)
        await trio.sleep(1)
        yield array
    await keeper.ended()


async def name_it(array: Array, name: str) -> None:
    await array.member_set.update(lambda config: replace(config, name=name))
    await trio.sleep(1)


def newest(folder: Path, array: Array) -> Saved:
    found = MetadataFiles(folder).newest(array.uuid)
    assert found is not None
    return found[1]


async def test_the_last_ten_different_ones_are_kept(tmp_path: Path) -> None:
    files = MetadataFiles(tmp_path)
    async with keeping(tmp_path) as array:
        assert [number for number, _ in files.of(array.uuid)] == [1]
        await array.write(0, bytes(range(256)) * 64)
        for _ in range(3):  # counters are no change
            await array.member_set.update(lambda config: config)
            await trio.sleep(1)
        assert [number for number, _ in files.of(array.uuid)] == [1]
        assert not any(one.samples for one in newest(tmp_path, array).members)
        await trio.sleep(REFRESH_S)
        assert all(one.samples for one in newest(tmp_path, array).members)
        for number in range(KEPT + 3):
            await name_it(array, f"name{number}")
        assert newest(tmp_path, array).config.name == f"name{KEPT + 2}"
        assert not newest(tmp_path, array).config.clean
    found = files.of(array.uuid)
    assert [number for number, _ in found] == list(range(5, 5 + KEPT))
    assert len(list(tmp_path.iterdir())) == KEPT  # no half one is left
    assert newest(tmp_path, array).config == array.member_set.config
    assert newest(tmp_path, array).config.clean


async def test_a_full_state_directory_costs_the_array_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write, files = metadata._write, MetadataFiles(tmp_path)

    def full(_path: Path, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with caplog.at_level(logging.WARNING):
        async with keeping(tmp_path) as array:
            monkeypatch.setattr(metadata, "_write", full)
            for number in range(3):
                await name_it(array, f"full{number}")
                await array.write(0, b"x" * 4096)
            assert files.is_behind(array.uuid)  # its newest file is not to be trusted
            assert newest(tmp_path, array).config.name == "disk"
            monkeypatch.setattr(metadata, "_write", write)
            await name_it(array, "free")
            assert not files.is_behind(array.uuid)
            assert newest(tmp_path, array).config.name == "free"
    said = [record.message for record in caplog.records if "not kept" in record.message]
    assert len(said) == 1
    caplog.clear()


async def test_no_state_directory_costs_the_array_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")
    async with keeping(tmp_path / "file" / "metadata") as array:
        await name_it(array, "other")
    assert array.member_set.config.clean
    assert sum("not kept" in record.message for record in caplog.records) == 1
    caplog.clear()


async def test_a_damaged_kept_file_is_followed_by_a_whole_one(tmp_path: Path) -> None:
    files = MetadataFiles(tmp_path)
    async with keeping(tmp_path) as array:
        ((_, path),) = files.of(array.uuid)
        path.write_bytes(path.read_bytes()[:-100])
        assert files.newest(array.uuid) is None
        await name_it(array, "other")
    assert newest(tmp_path, array).config.name == "other"


async def test_a_file_is_written_over_no_member(tmp_path: Path) -> None:
    async with keeping(tmp_path) as array:
        document = to_document(newest(tmp_path, array))
    path = tmp_path / "saved.json"
    metadata.write_file(str(path), document)
    metadata.write_file(str(path), document)  # over one of its kind
    member = tmp_path / "member"
    member.write_bytes(bytes(4096))
    for taken in (member, tmp_path):
        with pytest.raises(RaidxError, check=because(Reason.EXISTS)):
            metadata.write_file(str(taken), document)
    assert member.read_bytes() == bytes(4096)


def test_what_names_a_member() -> None:
    assert parted("2=/dev/sdc") == ("2", "/dev/sdc")
    assert parted("1a77fe32=/dev/sdc")[0] == "1a77fe32"
    assert parted("/srv/2=x") == (None, "/srv/2=x")
    assert parted("nbd://host/2=x") == (None, "nbd://host/2=x")
