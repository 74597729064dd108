"""Histories of arrays as sequences of superblock updates, which a test can interrupt anywhere."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from raidx_fuse.errors import AssemblyError
from raidx_fuse.format.assemble import Assembly, assemble
from raidx_fuse.format.configuration.config import (
    ACTIVE,
    FAILED,
    NO_ROLE,
    REBUILDING,
    SPARE,
    ArrayConfig,
    MemberRecord,
)
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import SUPERBLOCK_SLOT_BYTES
from raidx_fuse.format.superblock import write_config
from raidx_fuse.layouts.numbers import Role
from raidx_fuse.members.base import Member
from raidx_fuse.members.ram import RamMember
from raidx_fuse.members.simulated.virtual_time import run

SIZE = 1 << 20
METADATA_BYTES = SUPERBLOCK_SLOT_BYTES * 2


def with_state(config: ArrayConfig, role: int, state: str) -> ArrayConfig:
    """Return *config* with the member in *role* in *state*."""
    return config.with_record(replace(config.record(Role(role)), state=state))


class Scenario:
    """The disks of one array, and the superblocks that an engine writes to them over time."""

    def __init__(self, layout: str = "raid5", width: int = 4, *, first: int = 1, **options: Any):
        self._numbers = itertools.count(first << 64)
        self.disks = [RamMember(SIZE, name=f"d{n}") for n in range(width)]
        self._made = width

        async def make() -> ArrayConfig:
            return await create_array(
                self.disks,
                layout,
                chunk_bytes=4096,
                name=options.get("name", "disk"),
                now_s=0,
                uuid_source=self.uuid,
            )

        self.config = run(make)

    def uuid(self) -> str:
        """Return an unused UUID."""
        return str(uuid.UUID(int=next(self._numbers)))

    def new_disk(self) -> RamMember:
        """Return one more disk, blank."""
        self._made += 1
        self.disks.append(RamMember(SIZE, name=f"d{self._made - 1}"))
        return self.disks[-1]

    def assemble(self, *numbers: int) -> Assembly:
        """Assemble the disks *numbers*, all if none are named."""
        disks = [self.disks[n] for n in numbers] if numbers else self.disks
        return run(assemble, disks)

    def refused(self, *numbers: int) -> str:
        """Return the error message with which assembly is refused."""
        text = ""
        try:
            self.assemble(*numbers)
        except AssemblyError as error:
            text = str(error)
        assert text, "it was assembled"
        assert "\n" not in text
        return text

    def write(
        self, config: ArrayConfig, members: dict[str, Member], only: Iterable[int] | None = None
    ) -> None:
        """Write one round; a crash let it reach the disks *only* (default: all that it is for)."""
        before = [bytes(disk.memory[:METADATA_BYTES]) for disk in self.disks]

        async def do() -> frozenset[str]:
            return await write_config(members, config)

        assert run(do) == set()
        for number, disk in enumerate(self.disks):
            if only is not None and number not in only:
                disk.memory[:METADATA_BYTES] = before[number]

    def start(self, *numbers: int, only: Iterable[int] | None = None) -> Running:
        """Assemble and start; *only* as for `write`."""
        return Running(self, self.assemble(*numbers), only)


def starting_config(assembly: Assembly) -> ArrayConfig:
    """Return the configuration of a start with the members of *assembly*."""
    roles = {assembly.config.record(role).member_uuid for role in assembly.by_role}
    return assembly.config.started_with(roles | set(assembly.spares)).bumped()


class Running:
    """A started array: missing members are excluded before anything else."""

    def __init__(
        self, life: Scenario, assembly: Assembly, only: Iterable[int] | None = None
    ) -> None:
        self.life = life
        self.config = starting_config(assembly)
        self.members: dict[str, Member] = {
            self.config.record(role).member_uuid: member
            for role, member in assembly.by_role.items()
        }
        self.members.update(assembly.spares)
        life.write(self.config, self.members, only)

    def update(self, config: ArrayConfig, only: Iterable[int] | None = None) -> Running:
        """Write *config* with the next event."""
        self.config = replace(config, events=self.config.events + 1)
        self.life.write(self.config, self.members, only)
        return self

    def fail(self, role: int, only: Iterable[int] | None = None) -> Running:
        """Take *role* out."""
        self.members.pop(self.config.record(role).member_uuid, None)
        return self.update(with_state(self.config, role, FAILED), only)

    def spare(self, only: Iterable[int] | None = None) -> Running:
        """Let a new disk join as a spare."""
        disk = self.life.new_disk()
        record = MemberRecord(NO_ROLE, self.life.uuid(), SPARE, SIZE, disk.path)
        self.members[record.member_uuid] = disk
        return self.update(self.config.with_record(record), only)

    def replace(self, role: int, only: Iterable[int] | None = None) -> Running:
        """Let a new disk take *role*, rebuilt at once."""
        disk = self.life.new_disk()
        self.members.pop(self.config.record(role).member_uuid, None)
        record = MemberRecord(role, self.life.uuid(), REBUILDING, SIZE, disk.path)
        self.members[record.member_uuid] = disk
        self.update(self.config.with_record(record))
        return self.update(with_state(self.config, role, ACTIVE), only)

    def note(self, text: str, only: Iterable[int] | None = None) -> Running:
        """Change a setting."""
        return self.update(replace(self.config, settings={"note": text}), only)

    def close(self, only: Iterable[int] | None = None) -> Running:
        """End cleanly."""
        return self.update(replace(self.config, clean=True), only)


def roles(assembly: Assembly) -> dict[int, str]:
    """Return role -> path of the members that joined."""
    return {role: member.path for role, member in assembly.by_role.items()}


def stale(assembly: Assembly) -> dict[str, str]:
    """Return path -> reason of the members left out; the warnings must name them."""
    for member, reason in assembly.stale:
        assert any(member.path in line and reason in line for line in assembly.warnings)
    return {member.path: reason for member, reason in assembly.stale}
