"""Mounted arrays over real NBD servers, which are killed under load."""

from __future__ import annotations

import os
import random
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.nbd_real import running, server_command

if TYPE_CHECKING:
    from tests.mount.real_array import RealArray

pytestmark = [pytest.mark.mount]

SIZE_BYTES = 16 << 20
KINDS = ("nbdkit", "qemu-nbd-qcow2", "qemu-nbd")


def test_servers_killed_in_turn_under_load_lose_nothing(array: RealArray) -> None:
    folder = array.folder
    commands = {kind: server_command(kind, folder, SIZE_BYTES) for kind in KINDS}
    with ExitStack() as stack:
        processes: dict[str, subprocess.Popen[bytes]] = {}

        def start(kind: str) -> None:
            server = running(commands[kind][0], folder / f"{kind}.sock")
            processes[kind] = stack.enter_context(server)

        for kind in KINDS:
            start(kind)
        uris = [uri for _, uri in commands.values()]
        local = str(folder / "local.img")
        options = ["--layout", "raid5", "--size", "16MiB", "--name", array.image.name]
        array.raidx("create", *uris, local, *options)
        array.raidx("mount", *uris, local, array.mnt)
        other = folder / "other"
        other.mkdir()
        refusal = array.refused("mount", *uris, local, other)
        assert f"in use by process {array.daemon_pid()} on {os.uname().nodename}" in refusal
        (examined,) = array.ask("examine", uris[0])["members"]
        assert examined["held_by"] == f"process {array.daemon_pid()} on {os.uname().nodename}"

        chance = random.Random(1)
        model = bytearray(4 << 20)
        with array.image.open("r+b", buffering=0) as image:
            for step in range(300):
                data = chance.randbytes(chance.choice((512, 4096, 9000)))
                at = chance.randrange(len(model) - len(data))
                assert os.pwrite(image.fileno(), data, at) == len(data)
                model[at : at + len(data)] = data
                if step % 100 == 50:
                    kind = KINDS[step // 100]
                    processes[kind].kill()
                    processes[kind].wait()
                    start(kind)
                if step % 50 == 0:
                    os.fsync(image.fileno())
            os.fsync(image.fileno())
        assert array.read(len(model)) == model
        states = {member["state"] for member in array.status()["members"]}
        assert states == {"active"}
        array.fail(1)
        array.raidx("replace-disk", "ARRAY", "1", uris[1], "--overwrite-signature", "--wait")
        assert {member["state"] for member in array.status()["members"]} == {"active"}
        array.unmount()
        array.raidx("check", *uris, local)
        begin_s = time.monotonic()
        array.raidx("mount", *uris, local, array.mnt)
        assert time.monotonic() - begin_s < 8, "a member that was released is free at once"
        assert array.read(len(model)) == model
        array.unmount()
