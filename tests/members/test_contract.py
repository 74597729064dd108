"""The member contract over every kind of member and every wrapper."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raidx_fuse.members.base import Member, WrapperMember
from raidx_fuse.members.local import LocalMember, create_file
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.faulty import FaultMember
from raidx_fuse.members.simulated.lab_member import LabMember
from raidx_fuse.members.simulated.model import model_member
from raidx_fuse.members.simulated.powercut import CutRecord, PowerCutMember
from tests.support.member_contract import MemberContract

SIZE_BYTES = 5 << 20


class TestFile(MemberContract):
    @pytest.fixture
    def member(self, tmp_path: Path) -> Iterator[Member]:
        path = str(tmp_path / "disk.img")
        create_file(path, SIZE_BYTES)
        member = LocalMember(path, reads_zero=True)
        yield member
        member.close()


class TestFileInMemory(MemberContract):
    @pytest.fixture
    def member(self) -> Iterator[Member]:
        if not os.access("/dev/shm", os.W_OK):
            pytest.skip("no tmpfs at /dev/shm")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            create_file(f"{folder}/disk.img", SIZE_BYTES)
            member = LocalMember(f"{folder}/disk.img", reads_zero=True)
            yield member
            member.close()


class TestFileWithOneThread(MemberContract):
    @pytest.fixture
    def member(self, tmp_path: Path) -> Iterator[Member]:
        path = str(tmp_path / "disk.img")
        create_file(path, SIZE_BYTES)
        member = LocalMember(path, depth=1)
        yield member
        member.close()


@pytest.mark.loop
class TestBlockDevice(MemberContract):
    @pytest.fixture
    def member(self, loop_device: str) -> Iterator[Member]:
        member = LocalMember(loop_device)
        assert member.kind == "block"
        yield member
        member.close()

    @pytest.fixture
    def loop_device(self, tmp_path: Path) -> Iterator[str]:
        path = str(tmp_path / "backing.img")
        create_file(path, SIZE_BYTES)
        attach = ["losetup", "--find", "--show", path]
        try:
            done = subprocess.run(attach, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("losetup is not installed")
        if done.returncode:
            pytest.skip(f"no loop device: {done.stderr.strip()}")
        device = done.stdout.strip()
        yield device
        subprocess.run(["losetup", "--detach", device], check=True)


class TestRam(MemberContract):
    @pytest.fixture
    def member(self) -> Member:
        return RamMember(SIZE_BYTES)


class TestModelledDisk(MemberContract):
    @pytest.fixture(params=["hdd", "sas10k", "ssd", "nvme", "ram"])
    def member(self, request: pytest.FixtureRequest) -> Member:
        return model_member(SIZE_BYTES, request.param)


class TestModelledFile(MemberContract):
    @pytest.fixture
    def member(self, tmp_path: Path) -> Iterator[Member]:
        path = str(tmp_path / "disk.img")
        create_file(path, SIZE_BYTES)
        member = model_member(LocalMember(path, reads_zero=True), "ssd")
        yield member
        member.close()


class TestWrapper(MemberContract):
    @pytest.fixture
    def member(self) -> Member:
        return WrapperMember(RamMember(SIZE_BYTES))


class TestFaultless(MemberContract):
    @pytest.fixture
    def member(self) -> Member:
        return FaultMember(RamMember(SIZE_BYTES))


class TestLabMember(MemberContract):
    @pytest.fixture(params=["ram", "file"])
    def member(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Member]:
        path = str(tmp_path / "disk.img")
        create_file(path, SIZE_BYTES)
        ram = request.param == "ram"
        member = LabMember(RamMember(SIZE_BYTES) if ram else LocalMember(path, reads_zero=True))
        yield member
        member.close()


class TestSlow(MemberContract):
    @pytest.fixture
    def member(self) -> Member:
        member = FaultMember(RamMember(SIZE_BYTES))
        member.slow(0.01)
        return member


class TestPowerCut(MemberContract):
    @pytest.fixture
    def member(self) -> Member:
        return PowerCutMember(bytearray(SIZE_BYTES), record=CutRecord())
