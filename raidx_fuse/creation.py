"""Making an array from members as the user names them: check everything first, then write."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from raidx_fuse.disks import Disks, check_distinct, is_there, size_in
from raidx_fuse.errors import UsageError
from raidx_fuse.format.create import create_array
from raidx_fuse.format.regions import SECTOR_BYTES, plan_regions
from raidx_fuse.layouts.layout import Layout
from raidx_fuse.layouts.registry import check_chunk_bytes, make_code, make_layout
from raidx_fuse.members.base import Member
from raidx_fuse.volume import check_name


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """What `raidx create` was asked for.

    *members* as given; *member_bytes* is the size of member files that are missing (None: none may
    be); *image_bytes* limits the image; *params* belong to the layout.
    """

    members: tuple[str, ...]
    layout: str
    chunk_bytes: int
    name: str
    params: dict[str, Any]
    member_bytes: int | None = None
    image_bytes: int | None = None
    overwrite_signature: bool = False


@dataclass(frozen=True, slots=True)
class CreatePlan:
    """What creating will do: *missing* files are made, *member_bytes* is the smallest member."""

    layout: Layout
    missing: tuple[str, ...]
    member_bytes: int
    metadata_bytes: int

    def as_dict(self, request: CreateRequest) -> dict[str, Any]:
        """Return the plan as JSON values, in the words of other dry runs."""
        size = self.layout.size_bytes
        return {
            "dry_run": True,
            "does": f"makes {request.layout} of {len(request.members)} members",
            "layout": request.layout,
            "chunk_size": request.chunk_bytes,
            "size": min(size, request.image_bytes or size),
            "member_size": self.member_bytes,
            "metadata": self.metadata_bytes,
            "redundancy_left": self.layout.code.tolerance,
            "creates": list(self.missing),
            "bytes_moved": 0,
            "seconds": 0.0,
            "redundancy_reduced": False,
        }


async def plan(request: CreateRequest) -> CreatePlan:
    """Return what *request* will do; check all that can be checked without writing a byte.

    Raises UsageError, LayoutError, SignatureFoundError, BusyError, MemberError.
    """
    code = make_code(request.layout, len(request.members))
    check_chunk_bytes(request.chunk_bytes)
    check_name(request.name)
    check_distinct(request.members)
    missing = tuple(m for m in request.members if not is_there(m))
    sizes = [_size_to_make(member, request) for member in missing]
    with Disks(read_only=True) as disks:
        present = disks.attach([m for m in request.members if m not in missing])
        sizes += [member.size_bytes for member in present]
    for member in request.members:
        await Disks().check(
            member, overwrite_signature=request.overwrite_signature, may_create=True
        )
    smallest = min(sizes)
    regions = plan_regions(smallest, request.chunk_bytes, len(request.members), code.rows)
    layout = make_layout(
        request.layout,
        len(request.members),
        regions.data.length // request.chunk_bytes,
        request.chunk_bytes,
        **request.params,
    )
    if request.image_bytes is not None and request.image_bytes > layout.size_bytes:
        raise UsageError(f"these members make an image of at most {layout.size_bytes} bytes")
    return CreatePlan(layout, missing, smallest, regions.data.offset)


def _size_to_make(member: str, request: CreateRequest) -> int:
    size_bytes = size_in(member) or request.member_bytes
    if size_bytes is None:
        raise UsageError(f"{member} does not exist", action="--size S makes missing member files")
    if not size_bytes or size_bytes % SECTOR_BYTES:
        raise UsageError(f"a member's size is a multiple of {SECTOR_BYTES} bytes")
    return size_bytes


async def create(request: CreateRequest) -> CreatePlan:
    """Make the array; files made for it are removed again if that fails. Raises as `plan`."""
    planned = await plan(request)
    with Disks() as disks:
        members: list[Member] = []
        try:
            for member in request.members:
                opened = await disks.open(
                    member,
                    overwrite_signature=request.overwrite_signature,
                    create_bytes=request.member_bytes,
                )
                members.append(opened)
            await create_array(
                members,
                layout=request.layout,
                params=request.params,
                chunk_bytes=request.chunk_bytes,
                name=request.name,
                size_bytes=request.image_bytes,
                overwrite_signature=request.overwrite_signature,
                now_s=int(time.time()),  # the date of birth; nothing computes with it
            )
        except BaseException:
            for opened in members:
                disks.release(opened)
            raise
    return planned
