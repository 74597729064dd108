"""ext4 over Uniform P-code: two members fail under load, two are replaced, nothing is lost."""

from __future__ import annotations

import random

import pytest

from tests.mount.real_array import FioLoad, RealArray, need, run
from tests.support.waiting import await_that

pytestmark = [pytest.mark.mount, pytest.mark.loop]

MIB = 1 << 20


@pytest.mark.parametrize(
    ("width", "one", "other", "as_spares"), [(6, 1, 4, False), (10, 0, 9, True)]
)
def test_ext4_over_upc_survives_two_losses_under_load(
    array: RealArray, width: int, one: int, other: int, as_spares: bool
) -> None:
    need("mkfs.ext4", "e2fsck", "fio")
    array.create("upc", width, "48MiB", "--chunk", "16KiB").mount()
    array.raidx("set", "ARRAY", "speed_min=256MiB")
    system = array.file_system()
    system.make()
    kept = random.Random(6).randbytes(8 * MIB)  # from before the losses
    (system.where / "kept").write_bytes(kept)
    run("sync", "-f", system.where)
    load = FioLoad(array.folder, system.where, 4 * MIB)

    def await_more() -> None:
        array.await_written(array.counters()["write_bytes"] + 2 * MIB)
        assert not load.problems, load.problems

    try:
        await_more()
        for role in (one, other):
            array.fail(role)
            await_more()
        status = array.status()
        assert (status["state"], status["redundancy_left"]) == ("degraded", 0)
        third = next(role for role in range(width) if role not in (one, other))
        assert f"role {third} cannot be spared" in array.refused("fail-disk", "ARRAY", str(third))
        assert array.counters()["degraded_reads"] > 0
        if as_spares:
            news = [array.folder / f"spare{number}.img" for number in range(2)]
            array.raidx("add-disk", "ARRAY", *news, "--as", "spare", "--create")
        else:
            for role in (one, other):
                array.replace(role, "--wait")
                await_more()
        await_that(lambda: array.status()["state"] == "clean", array.status)
        members = array.status()["members"]
        assert [m["state"] for m in members if m["role"] >= 0] == ["active"] * width
        await_more()
    finally:
        load.stop()
    system.again()
    array.scrub()
    load.verify()
    assert (system.where / "kept").read_bytes() == kept
    system.take_down()
    array.unmount()
