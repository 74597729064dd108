"""`raidx_fuse.client` on a real mount: a program that replaces a member."""

from __future__ import annotations

import pytest

from raidx_fuse.client import Client, RaidxError, TimedOutError
from raidx_fuse.errors import Reason
from tests.mount.real_array import RealArray
from tests.support.reasons import because

pytestmark = [pytest.mark.mount]


def test_a_program_replaces_a_member_and_reads_of_it(
    array: RealArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    array.create("raid5", 4, "8MiB")
    array.mount()
    client = Client(array.mnt)
    assert client.wait(timeout_s=10)["state"] == "clean"
    assert client.settings()["journal"] == "partial"
    assert client.set("speed_min", "1MiB") == {"speed_min": 1 << 20}
    assert client.stats(0.05)["interval_seconds"] > 0
    done = client.wait_job(client.scrub(repair=True).get("job") or 0)
    assert (done["kind"], done["state"]) == ("scrub", "done")
    plan = client.replace_disk(2, array.folder / "new.img", create=True, dry_run=True)
    assert plan.get("dry_run") is True
    client.fail_disk(2)
    with pytest.raises(TimedOutError) as late:
        client.wait("clean", timeout_s=0)
    assert "raidx replace-disk" in str(late.value.action)
    monkeypatch.setattr("raidx_fuse.client.STUCK_LOOKS", 2)
    with pytest.raises(TimedOutError, match="no job runs, so it stays as it is") as stuck:
        client.wait()
    assert "raidx replace-disk" in str(stuck.value.action)
    assert client.online(1) == {"job": None}, "it is in use"
    back = client.online(str(array.members[2])).get("job")
    assert isinstance(back, int)
    assert client.wait_job(back)["state"] == "done"
    assert [each["role"] for each in client.clear()["members"]] == [0, 1, 2, 3]
    assert client.clear(2)["members"][0]["repairs"] == 0
    client.fail_disk(2)
    with pytest.raises(RaidxError) as refused:
        client.fail_disk(1)
    assert refused.value.kind == "array_failed"
    job = client.replace_disk(2, array.folder / "new.img", create=True).get("job")
    assert isinstance(job, int)
    assert client.wait_job(job)["state"] == "done"
    assert client.wait(timeout_s=30)["state"] == "clean"
    events = [event["event"] for event in client.events()]
    assert events.index("Fail") < events.index("RebuildFinished")
    array.unmount()
    with pytest.raises(RaidxError, check=because(Reason.NOT_MOUNTED)):
        client.status()
