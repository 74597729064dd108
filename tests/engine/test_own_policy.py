"""Parity policies of other packages: they choose, and cannot do more than that."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raidx_fuse.array.array import Array
from raidx_fuse.engine.parity_policies import OwnPolicy
from raidx_fuse.errors import UsageError
from tests.support.arrays import Rig
from tests.support.load import opened, scrubbed
from tests.support.packages import installed, write_package

BODY = """
calls = []

def likes_rcw(rmw, rcw, waiting):
    calls.append((rmw, rcw, waiting))
    return "rcw"

def likes_rmw(rmw, rcw, waiting):
    return "rmw"

def raising(rmw, rcw, waiting):
    calls.append(None)
    return waiting["no"]

def babbling(rmw, rcw, waiting):
    return "both"

def exiting(rmw, rcw, waiting):
    raise SystemExit(3)
"""
NAMES = ("likes_rcw", "likes_rmw", "raising", "babbling", "exiting", "missing")
WIDTH = 7  # of raid5: a write of one chunk reads 2 (rmw) or 5 (rcw)


@pytest.fixture(autouse=True)
def _site(tmp_path: Path) -> Iterator[None]:
    names = {name.replace("_", "-"): name for name in NAMES}
    write_package(tmp_path / "site", "my-policies", BODY, policies={**names, "bpu": "raising"})
    with installed(tmp_path / "site"):
        yield


async def filled(rig: Rig, policy: str) -> Array:
    """Return the running array, written once, under *policy*."""
    array = await rig.create()
    await array.set("parity.policy", policy)
    for at in range(0, len(rig.model), 1 << 18):
        await array.write(at, bytes(rig.model[at : at + (1 << 18)]))
    await array.flush()
    return array


async def reads_of_small_writes(rig: Rig, array: Array) -> int:
    """Write parts of single chunks; return how many reads that took."""
    before = sum(q.reads for q in array.member_set.queues if q is not None)
    for number in range(8):
        at = number * 5 * rig.chunk_bytes + 512
        rig.model[at : at + 512] = bytes([number + 1]) * 512
        await array.write(at, bytes([number + 1]) * 512)
    return sum(q.reads for q in array.member_set.queues if q is not None) - before


@pytest.mark.parametrize(("policy", "reads"), [("likes-rmw", 2), ("likes-rcw", 5)])
async def test_it_chooses_the_plan(policy: str, reads: int) -> None:
    rig = Rig("raid5", WIDTH)
    array = await filled(rig, policy)
    assert await reads_of_small_writes(rig, array) == 8 * reads
    assert array.get("parity.policy") == policy
    await scrubbed(rig)
    array = await rig.reopen()
    assert isinstance(array.context.policies.current, OwnPolicy), "it is kept over a remount"
    await rig.close()


@pytest.mark.parametrize("policy", ["raising", "babbling", "exiting"])
async def test_a_policy_that_fails_is_not_asked_again(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig("raid5", WIDTH)
    array = await filled(rig, policy)
    with caplog.at_level(logging.ERROR):
        assert await reads_of_small_writes(rig, array) == 8 * 2, "as traditional"
    await scrubbed(rig)
    await rig.close()
    lines = [line for line in caplog.messages if f"parity policy '{policy}'" in line]
    assert len(lines) == 1
    assert "of package my-policies 1.0 fails: " in lines[0]
    assert "\n" not in lines[0]


async def test_names_are_refused_in_one_line() -> None:
    rig = await opened(Rig("raid5", 4))
    array = rig.array
    with pytest.raises(UsageError, match=r"choose one of traditional, .*bpu, .*likes-rcw"):
        await array.set("parity.policy", "nix")
    with pytest.raises(UsageError, match=r"'missing' of package my-policies 1\.0 cannot be im"):
        await array.set("parity.policy", "missing")
    await array.set("parity.policy", "bpu")
    policies = array.context.policies
    assert policies.current is policies.bpu, "the built-in one has the name"
    assert array.get("parity.policy") == "bpu"


async def test_an_array_starts_without_its_policy_and_has_it_again_with_the_package(
    tmp_path: Path,
) -> None:
    rig = Rig("raid5", 4)
    array = await filled(rig, "likes-rcw")
    assert array.status()["warnings"] == []
    await rig.close()
    with installed(tmp_path):
        (tmp_path / "site").rename(tmp_path / "gone")
        array = await rig.open()
        assert array.get("parity.policy") == "traditional"
        (line,) = array.status()["warnings"]
        assert line.startswith(
            "parity policy likes-rcw is of no package that is installed here; traditional"
        )
        assert "raidx set ARRAY parity.policy=NAME" in line
        await array.set("speed_max", "1MiB")  # which writes the settings again
        await rig.compare()
        await rig.close()
        (tmp_path / "gone").rename(tmp_path / "site")
    array = await rig.open()
    assert array.get("parity.policy") == "likes-rcw"
    assert isinstance(array.context.policies.current, OwnPolicy)
    assert array.status()["warnings"] == []
    await rig.close()
    with installed(tmp_path):
        (tmp_path / "site").rename(tmp_path / "gone")
        array = await rig.open()
        await array.set("parity.policy", "rmw")
        assert array.status()["warnings"] == []
        await rig.close()


async def test_the_status_names_a_policy_that_cannot_be_used(tmp_path: Path) -> None:
    rig = Rig("raid5", WIDTH)
    array = await filled(rig, "raising")
    await reads_of_small_writes(rig, array)
    (line,) = array.status()["warnings"]
    assert line.startswith("parity policy raising fails: TypeError: ")
    assert array.get("parity.policy") == "traditional"
    await array.set("parity.policy", "likes-rmw")
    await rig.close()
    (module,) = (tmp_path / "site").rglob("my_policies.py")
    module.write_text(BODY.replace("def likes_rmw", "def likes_nothing"))
    del sys.modules["my_policies"]
    with installed(tmp_path / "site"):
        array = await rig.open()
        (line,) = array.status()["warnings"]
        assert "likes-rmw cannot be used: 'likes-rmw' of package my-policies 1.0 " in line
        await rig.close()
