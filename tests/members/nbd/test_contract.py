"""The member contract over an NBD server in memory, and over real servers where installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raidx_fuse.members.base import Member
from raidx_fuse.members.nbd.member import NbdMember
from raidx_fuse.members.nbd.protocol.wire import Flag
from raidx_fuse.members.open import open_member
from tests.support.member_contract import MemberContract
from tests.support.nbd_real import SERVERS, real_server
from tests.support.nbd_server import FLAGS, MemoryServer

SIZE_BYTES = 5 << 20

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "simple-replies": {"structured": False},
    "slow": {"delay_s": 0.01},
    "blocks-of-512": {"block_bytes": 512},
    "blocks-of-4096": {"block_bytes": 4096, "delay_s": 0.001},
    "small-payloads": {"payload_bytes_max": 65536},
    "one-connection": {"flags": FLAGS & ~Flag.MULTI_CONN, "delay_s": 0.001},
    "no-zeroes": {"flags": FLAGS & ~Flag.WRITE_ZEROES},
    "fua-only": {"flags": (FLAGS & ~Flag.FLUSH) | Flag.FUA},
}


class TestMemoryServer(MemberContract):
    @pytest.fixture(params=VARIANTS)
    def member(self, request: pytest.FixtureRequest) -> Iterator[Member]:
        server = MemoryServer(SIZE_BYTES, **VARIANTS[request.param])
        member = NbdMember("nbd://rig/disk", server.dial, lock=False)
        yield member
        member.close()


class TestRealServer(MemberContract):
    @pytest.fixture(params=SERVERS)
    def member(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Member]:
        with real_server(request.param, tmp_path, SIZE_BYTES) as uri:
            member = open_member(uri, lock=False)
            yield member
            member.close()
