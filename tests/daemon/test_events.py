"""Events: noticed in order, kept within bounds, delivered; a bad hook holds up nothing."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from raidx_fuse.daemon.commands.events import EventCommands
from raidx_fuse.daemon.events import delivery as delivery_module
from raidx_fuse.daemon.events import programs
from raidx_fuse.daemon.events import store as store_module
from raidx_fuse.daemon.events.delivery import (
    DAY_S,
    WAITING_MAX,
    Delivery,
    delivering,
)
from raidx_fuse.daemon.events.event import Event, from_dict
from raidx_fuse.daemon.events.programs import send_to_journal
from raidx_fuse.daemon.events.sources import LOOK_S, Watch
from raidx_fuse.daemon.events.store import EventStore
from raidx_fuse.errors import MemberError, RaidxError, UsageError
from raidx_fuse.laws import LawError
from raidx_fuse.settings import DIGEST, MAIL, PROGRAM
from tests.daemon.conftest import Desk
from tests.support.spy import restarted, spying

CHUNK = 4096
EVENT = Event(
    at_s=1_700_000_000,
    event="Fail",
    severity="error",
    array="disk",
    uuid="11111111-2222-3333-4444-555555555555",
    mountpoint="/mnt/a",
    subject="/disks/d2",
    message="member /disks/d2 has failed",
    action="replace it",
)


# -- what is noticed -------------------------------------------------------------------------------


async def test_a_digest_of_each_day_is_told_and_mailed_if_it_is_asked_for(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is mailed though nothing is wrong, and counts what was told since the last one."""
    mailed: list[Event] = []

    async def send(address: str, event: Event, limit_s: float) -> dict[str, Any]:
        assert address == "root"
        mailed.append(event)
        return {"ok": True, "problem": None}

    monkeypatch.setattr(delivery_module, "send_mail", send)
    delivery = Delivery(EventStore(tmp_path))
    watch = Watch(delivery.emit, "/mnt/a", lambda: 7)
    watch.begin(desk.array)
    await delivery.save(desk.array.uuid, {MAIL: "root"})
    async with delivering(delivery), trio.open_nursery() as nursery:
        nursery.start_soon(delivery.digest, watch)
        await desk.ask("fail-disk", member="2")
        await trio.sleep(1.5 * DAY_S)
        assert {event.event for event in mailed} == {"Fail", "DegradedArray"}
        mailed.clear()
        await delivery.save(desk.array.uuid, {MAIL: "root", DIGEST: "on"})
        await trio.sleep(2 * DAY_S)
        first, second = mailed
        nursery.cancel_scope.cancel()
    assert (first.event, first.severity) == ("Digest", "info")
    assert "degraded, 0 more members may be lost; 50% of the image written" in first.message
    assert "2 errors, 0 warnings" in first.message
    assert "0 errors, 0 warnings" in second.message
    assert "replace-disk" in str(first.action)


async def test_a_failure_its_replacement_and_the_end_are_told_in_order(desk: Desk) -> None:
    told: list[Event] = []
    watch = Watch(told.append, "/mnt/a", lambda: 7)
    watch.begin(desk.array)
    await desk.ask("fail-disk", member="2")
    answer = await desk.ask("replace-disk", old="2", new="fresh")
    await desk.ask("job-wait", job=answer["job"])
    await desk.ask("job-wait", job=(await desk.ask("scrub"))["job"])
    await desk.rig.close()
    watch.ended()
    assert [event.event for event in told] == [
        *("NewArray", "Fail", "DegradedArray", "RebuildStarted", "RebuildFinished"),
        "SpareActive",
        *("ScrubStarted", "ScrubFinished", "ArrayStopped"),
    ]
    fail, degraded = told[1:3]
    assert (fail.severity, fail.at_s, fail.mountpoint) == ("error", 7, "/mnt/a")
    assert fail.subject
    assert degraded.action == "replace member 2: raidx replace-disk /mnt/a 2 NEW_MEMBER"
    assert all(from_dict(event.as_dict()) == event for event in told)


async def test_jobs_are_called_by_nouns(desk: Desk) -> None:
    told: list[Event] = []
    Watch(told.append, "/mnt/a", lambda: 7).begin(desk.array)
    answer = await desk.ask("add-disk", members=["fresh"])
    await desk.ask("job-wait", job=answer["job"])
    answer = await desk.ask("replace-disk", old="0", new="other")
    await desk.ask("job-wait", job=answer["job"])
    messages = [event.message for event in told]
    for wanted in ("a growth has begun", "the growth is done", "the replacement is done"):
        assert wanted in messages


async def test_a_hotspot_is_told_once_and_its_end_too(desk: Desk) -> None:
    told: list[Event] = []
    watch = Watch(told.append, "/mnt/a", lambda: 7)
    watch.begin(desk.array)
    for hot, used in ((False, 0.1), (True, 0.9), (True, 0.95), (False, 0.4), (False, 0.3)):
        load: Any = {"hotspot": hot, "utilisation": used, "tau": 0.8}
        watch.note_load(load)
    begin, end = told[1:]
    assert (begin.event, begin.severity) == ("Hotspot", "warning")
    assert begin.message == "it is a hotspot: its utilisation is 90%, threshold 80%"
    assert begin.action == "see what would help: raidx balance /mnt/a --dry-run"
    assert (end.event, end.severity, end.action) == ("HotspotGone", "info", None)
    assert end.message == "it is no hotspot any more: its utilisation is 40%, threshold 80%"


async def test_rot_a_crash_a_stall_and_a_degraded_start_are_told() -> None:
    told: list[Event] = []

    def kinds() -> list[str]:
        found = [event.event for event in told]
        told.clear()
        return found

    async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
        await rig.put(0, bytes(range(256)) * 16 * 30)
        await rig.in_place()
        watch = Watch(told.append, "/mnt", lambda: 0)
        watch.begin(rig.array)
        rig.array.nursery.start_soon(watch.run)
        assert kinds() == ["NewArray"]
        await rig.members[1].rot(rig.data.offset + 100, 2)
        await rig.array.jobs.wait(await rig.array.start_scrub(repair=False))
        found = told[-1]
        assert kinds() == ["ScrubStarted", "ScrubFinished", "MismatchFound"]
        assert "mismatches found by the scrub: 1, left: 1" in found.message
        assert "raidx scrub /mnt --repair" in (found.action or "")
        rig.array.context.bad_chunks.add(5)
        await trio.sleep(2.5 * LOOK_S)
        assert kinds() == ["LostChunks"], "once"
        rig.array.context.bad_chunks.discard(5)
        await trio.sleep(2)  # the superblocks have it
        await rig.array.fail_disk(0)
        await rig.put(0, b"logged")
        images = rig.images()
    told.clear()
    async with restarted(images[1:]) as array:
        Watch(told.append, "/mnt", lambda: 0, beside_others=True).begin(array)
        assert "log records redone: 1" in told[1].message
        assert f"raidx replace-disk /mnt:{array.name} 0" in (told[2].action or "")
        assert kinds() == ["NewArray", "Recovered", "DegradedArray"]


# -- what is kept ----------------------------------------------------------------------------------


def test_the_store_is_private_bounded_and_reads_what_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "FILE_BYTES_MAX", 4000)
    monkeypatch.setattr(store_module, "ARRAYS_MAX", 3)
    store = EventStore(tmp_path / "a" / "state")
    for number in range(100):
        store.append(replace(EVENT, at_s=number))
    kept = store.read()
    assert [event.at_s for event in kept] == list(range(100 - len(kept), 100))
    assert 8 < len(kept) < 60
    assert sum(path.stat().st_size for path in store.folder.iterdir()) <= 8000
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.folder.iterdir()} == {0o600}
    for number in range(5):
        path = store.folder / f"{number}.events"
        store.append(replace(EVENT, uuid=str(number)))
        os.utime(path, (number, number))
    assert len(list(store.folder.glob("*.events"))) == 3
    with (store.folder / "4.events").open("ab") as file:
        file.write(b'\xff{"at_s": 1}\n{"at_s": "x"}\nnull\n[' + b"[" * 5000 + b"\n")
    assert len(store.read()) >= 2


WRONG: list[dict[str, Any]] = [
    *({"at_s": -1}, {"at_s": True}, {"at_s": 10**400}, {"severity": "loud"}),
    *({"message": 5}, {"action": []}, {"array": "x" * 1001}),
]


@pytest.mark.parametrize("change", WRONG)
def test_what_is_no_event_is_none(change: dict[str, Any]) -> None:
    assert from_dict(EVENT.as_dict()) == EVENT
    assert from_dict(EVENT.as_dict() | change) is None


# -- what is delivered -----------------------------------------------------------------------------


def script(path: Path, text: str) -> str:
    """Make *path* a shell script; return it."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.real_time
async def test_a_program_gets_mdadms_words_and_the_event(tmp_path: Path) -> None:
    store = EventStore(tmp_path / "state")
    program = script(tmp_path / "hook", f'echo "$@" > {tmp_path}/words; cat > {tmp_path}/event')
    store.save(EVENT.uuid, {PROGRAM: program})
    async with delivering(Delivery(store, journal=str(tmp_path / "none"))) as delivery:
        delivery.emit(EVENT)
    assert (tmp_path / "words").read_text() == "Fail /mnt/a /disks/d2\n"
    assert from_dict(json.loads((tmp_path / "event").read_text())) == EVENT
    assert store.read() == [EVENT]


@pytest.mark.real_time
async def test_a_program_that_hangs_is_killed_with_its_children_and_holds_up_nothing(
    tmp_path: Path,
) -> None:
    store = EventStore(tmp_path / "state")
    text = f'[ "$1" = Hang ] || exit 3\nsleep 600 & echo $! > {tmp_path}/child; trap "" TERM; wait'
    store.save(EVENT.uuid, {PROGRAM: script(tmp_path / "hook", text)})
    delivery = Delivery(store, hook_s=0.3)
    async with delivering(delivery):
        began_s = trio.current_time()
        delivery.emit(replace(EVENT, event="Hang"))
        delivery.emit(EVENT)
        assert trio.current_time() - began_s < 0.1
        await trio.sleep(0.2)
        assert len(store.read()) == 2, "what is kept does not wait for hooks"
        result = await delivery.call_hooks(replace(EVENT, event="Hang"))
        assert str(result[PROGRAM]["problem"]).endswith("no end within 0.3 s: killed")
        result = await delivery.call_hooks(EVENT)
        assert str(result[PROGRAM]["problem"]).endswith("exit status 3")
        for program in ("/nowhere", "/bin/a\0b"):
            store.save(EVENT.uuid, {PROGRAM: program})
            assert not (await delivery.call_hooks(EVENT))[PROGRAM]["ok"]
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.real_time
async def test_too_many_events_are_dropped_and_counted_and_a_bad_folder_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    delivery = Delivery(EventStore(tmp_path / "file"))
    async with delivering(delivery):
        for _ in range(WAITING_MAX + 5):
            delivery.emit(EVENT)
    assert delivery.dropped == 5
    assert "too many events wait: 5 dropped" in caplog.text
    assert "an event was not kept on disk" in caplog.text


def test_the_journal_gets_fields(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(path)
        send_to_journal(replace(EVENT, message="two\nlines", action=None), path)
        fields = dict(line.split("=", 1) for line in journal.recv(4096).decode().splitlines())
    assert fields == {
        **{"MESSAGE": "two lines", "PRIORITY": "3", "SYSLOG_IDENTIFIER": "raidx"},
        **{"RAIDX_EVENT": "Fail", "RAIDX_ARRAY": "disk", "RAIDX_SUBJECT": "/disks/d2"},
        "RAIDX_UUID": EVENT.uuid,
    }
    send_to_journal(EVENT, str(tmp_path / "nobody"))


@pytest.mark.real_time
async def test_errors_are_mailed_and_mere_news_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EventStore(tmp_path / "state")
    store.save(EVENT.uuid, {MAIL: "root@example.org"})
    monkeypatch.setattr(programs, "SENDMAIL_PATH", str(tmp_path))
    delivery = Delivery(store)
    assert await delivery.call_hooks(replace(EVENT, severity="info")) == {}
    script(tmp_path / "sendmail", f'echo "$@" > {tmp_path}/words; cat > {tmp_path}/mail')
    assert (await delivery.call_hooks(EVENT))[MAIL] == {"ok": True, "problem": None}
    assert (tmp_path / "words").read_text() == "-i root@example.org\n"
    head, _, body = (tmp_path / "mail").read_text().partition("\n\n")
    assert "To: root@example.org\nSubject: Fail on disk (" in head
    assert "member /disks/d2 has failed" in body
    assert "Next: replace it" in body


# -- commands --------------------------------------------------------------------------------------


async def test_hooks_are_set_on_this_machine_tried_and_never_in_the_superblocks(
    tmp_path: Path, desk: Desk
) -> None:
    store = EventStore(tmp_path / "state")
    good = script(tmp_path / "good", f"echo $1 >> {tmp_path}/said")
    (tmp_path / "plain").write_text("no program")
    delivery = Delivery(store)
    watch = Watch(delivery.emit, "/mnt/a", lambda: 0)
    watch.begin(desk.array)
    events = EventCommands(desk.array.uuid, delivery, watch)
    desk.begin(events)
    settings = (await desk.ask("get"))["settings"]
    assert (settings[PROGRAM], settings[MAIL]) == ("off", "off")
    assert "speed_max" in settings
    for key, value, words in (
        (PROGRAM, "good", "not an absolute path"),
        (PROGRAM, str(tmp_path / "plain"), "is not a program"),
        (MAIL, "-oQ/tmp root", "not a mail address"),
        ("events.fax", "1", "known: events.mail, events.digest, events.program"),
    ):
        with pytest.raises(UsageError, match=words):
            await desk.ask("set", key=key, value=value)
    await desk.ask("set", key=PROGRAM, value=good)
    assert (await desk.ask("get", key=PROGRAM))["settings"] == {PROGRAM: good}
    assert PROGRAM not in desk.array.member_set.config.settings
    assert EventStore(store.folder).load(desk.array.uuid) == {PROGRAM: good}
    await desk.ask("set", key=PROGRAM, value="off")
    assert (await desk.ask("events-test"))["hooks"] == {}


async def test_what_is_found_at_a_look_is_told_once() -> None:
    told: list[Event] = []

    async def next_look() -> list[str]:
        await trio.sleep(1.01 * LOOK_S)
        kinds = [event.event for event in told]
        told.clear()
        return kinds

    async with spying("raid5", 4, chunk_bytes=CHUNK) as rig:
        await rig.put(0, bytes(range(256)) * 16 * 30)
        await rig.in_place()
        watch = Watch(told.append, "/mnt", lambda: 0)
        watch.begin(rig.array)
        rig.array.nursery.start_soon(watch.run)
        layout = rig.array.context.layout
        role, place = rig.array.context.position(*layout.locate(0))
        rig.members[role].lose_sectors(place)
        await rig.get(0, CHUNK)
        assert await next_look() == ["NewArray", "ReadErrorMended"]
        assert rig.array.status()["members"][role]["repairs_ever"] == 1
        rig.members[role].lose_sectors(place)
        await rig.array.fail_disk(layout.place(*layout.locate(1))[0])
        with pytest.raises(RaidxError):
            await rig.get(0, CHUNK)
        assert await next_look() == ["Fail", "DegradedArray", "UnreadablePages"]
        assert "1 page cannot be read" in (rig.array.status()["action"] or "")
        assert await next_look() == [], "once"
        with pytest.raises(LawError):
            rig.array.context.end_growth()
        assert await next_look() == ["LawBroken"]
        assert await next_look() == []
        for _ in range(2):
            rig.array.context.journal.waits_for_room += 7
            await trio.sleep(LOOK_S / 2)
            rig.array.context.journal.waits_for_room += 1
            assert await next_look() == ["LogFull"], "once for each time that it fills up"
            assert await next_look() == []
        for _ in range(2):
            member = rig.members[0]
            refused = MemberError(member.path, "reserve", 0, errno.EDQUOT)
            rig.array.member_set.hosts.note_refused(refused, CHUNK)
            assert await next_look() == ["HostFull"]
            assert await next_look() == []
            assert rig.array.status()["host_full"]
            rig.array.member_set.hosts.note_taken(member.path)
            assert await next_look() == ["HostHasSpace"]
            assert not rig.array.status()["host_full"]
