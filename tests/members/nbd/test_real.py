"""NBD members with servers that are not ours, in real time; skipped where they are missing."""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from raidx_fuse.errors import MemberError, RaidxError
from raidx_fuse.members.nbd.member import NbdMember
from raidx_fuse.members.open import open_export
from tests.support.certificates import make_certificates
from tests.support.nbd_proxy import Proxy
from tests.support.nbd_real import real_server, running, server_command

SIZE_BYTES = 4 << 20
PAGE = 4096
PAGES = 16


async def work(member: NbdMember, model: list[int | None], seed: int, steps: int) -> int:
    """Write and read pages from four tasks; return how many writes were refused.

    A page whose write was refused is unknown (None) until it is written again.
    """
    chance, refused = random.Random(seed), 0

    async def worker(number: int) -> None:
        nonlocal refused
        for step in range(steps):
            page = chance.randrange(PAGES // 4) * 4 + number
            at, value = page * PAGE, step % 255 + 1
            if chance.random() < 0.7:
                model[page] = None
                try:
                    await member.writev(at, [bytes([value]) * PAGE])
                    model[page] = value
                except MemberError:
                    refused += 1
            elif chance.random() < 0.2:
                await member.flush()
            elif (expected := model[page]) is not None:
                buffer = bytearray(PAGE)
                await member.readv(at, [buffer])
                assert buffer == bytes([expected]) * PAGE

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(worker, number)
    return refused


async def verify(member: NbdMember, model: list[int | None]) -> None:
    await member.flush()
    for page, value in enumerate(model):
        if value is not None:
            buffer = bytearray(PAGE)
            await member.readv(page * PAGE, [buffer])
            assert buffer == bytes([value]) * PAGE, page


@pytest.mark.parametrize("kind", ["nbdkit", "qemu-nbd-qcow2"])
def test_a_server_killed_and_restarted_under_load_loses_nothing(kind: str, tmp_path: Path) -> None:
    command, uri = server_command(kind, tmp_path, SIZE_BYTES)
    socket = tmp_path / f"{kind}.sock"

    async def main() -> None:
        model: list[int | None] = [None] * PAGES
        with running(command, socket) as first:
            member = open_export(uri, lock=False)
            async with trio.open_nursery() as nursery:

                async def load() -> None:
                    assert not await work(member, model, 1, 250)

                nursery.start_soon(load)
                await trio.sleep(0.05)
                first.kill()
                first.wait()
                again = running(command, socket)
                nursery.start_soon(trio.to_thread.run_sync, again.__enter__)
            await verify(member, model)
            member.close()
            again.__exit__(None, None, None)

    trio.run(main)


@pytest.mark.parametrize("seed", range(3))
def test_a_man_in_the_middle_loses_no_answered_write(seed: int, tmp_path: Path) -> None:
    with real_server("nbdkit-memory", tmp_path, SIZE_BYTES):
        target = str(tmp_path / "nbdkit-memory.sock")

        async def main() -> None:
            model: list[int | None] = [None] * PAGES
            proxy = Proxy(str(tmp_path / "p.sock"), target, random.Random(seed), 0.2)
            async with trio.open_nursery() as nursery:
                await nursery.start(proxy.serve)
                uri = f"nbd+unix:///?socket={proxy.path}"
                member = await trio.to_thread.run_sync(lambda: open_export(uri, lock=False))

                refused = await work(member, model, seed, 60)
                assert proxy.cuts
                assert refused, "no write was ever under way at a cut: the test shows nothing"
                await trio.sleep(0.3)  # now everything late has arrived
                await verify(member, model)
                member.close()
                nursery.cancel_scope.cancel()

        trio.run(main)


def nbdkit(folder: Path, *arguments: str) -> tuple[list[str], str]:
    """Return a command line of nbdkit, and the URI of its export."""
    if shutil.which("nbdkit") is None:
        pytest.skip("nbdkit is not installed")
    socket = folder / "n.sock"
    return ["nbdkit", "-f", "-U", str(socket), *arguments], f"nbd+unix:///disk?socket={socket}"


REFUSALS = [
    (["-r", "memory", "4M"], "open failed: the export is read-only"),
    (["memory", "64k"], "65536 bytes are too small"),
    (
        [
            "--filter=blocksize-policy",
            "memory",
            "4M",
            "blocksize-minimum=8192",
            "blocksize-preferred=8192",
        ],
        "blocks of 8192 bytes are too large",
    ),
    (
        ["--filter=exportname", "memory", "4M", "exportname-strict=true", "exportname=other"],
        "disk",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSALS)
def test_what_cannot_be_a_member_is_named_in_one_line(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    command, uri = nbdkit(tmp_path, *arguments)
    with running(command, tmp_path / "n.sock"), pytest.raises(RaidxError, match=message) as error:
        open_export(uri)
    assert "\n" not in str(error.value)


def test_an_unknown_export_and_a_missing_server_are_named(tmp_path: Path) -> None:
    command, uri = server_command("qemu-nbd", tmp_path, SIZE_BYTES)
    other = uri.replace("disk?", "other?")
    with (
        running(command, tmp_path / "qemu-nbd.sock"),
        pytest.raises(RaidxError, match=r"has no export 'other'.*; name one that 'nbdinfo --list'"),
    ):
        open_export(other)
    with pytest.raises(RaidxError, match=r"there is no socket .*: start its server"):
        open_export(uri)
    with pytest.raises(RaidxError, match=r"longer than 107 bytes: make a link"):
        open_export(f"nbd+unix:///x?socket={tmp_path}/{'s' * 108}")
    with pytest.raises(RaidxError, match=r"no server listens on 127.0.0.1:1: start it"):
        open_export("nbd://127.0.0.1:1/x")


def test_no_descriptor_is_left_behind(tmp_path: Path) -> None:
    command, uri = nbdkit(tmp_path, "memory", "4M")
    socket = tmp_path / "n.sock"

    async def main() -> None:
        before = len(os.listdir("/proc/self/fd"))
        with running(command, socket) as server:
            during = len(os.listdir("/proc/self/fd"))
            for lock in (False, True):
                member = open_export(uri, lock=lock)
                await member.writev(0, [b"x" * 512])
                member.close()
            holder = open_export(uri)
            await holder.writev(0, [b"x" * 512])
            await holder.flush()
            await trio.sleep(0.05)
            assert len(os.listdir("/proc/self/fd")) == during + 2, "a socket and a witness"
            server.kill()
            server.wait()
            with running(command, socket):  # the memory of the new one is empty
                with pytest.raises(MemberError, match="the export has lost content"):
                    await holder.writev(0, [b"y" * 512])
                holder.close()
            await trio.sleep(0.05)
        assert len(os.listdir("/proc/self/fd")) == before

    trio.run(main)


def test_errors_and_delays_of_a_server_are_errors_and_delays(tmp_path: Path) -> None:
    filters = ["--filter=error", "--filter=delay"]
    options = ["error-pwrite-rate=100%", "error-pwrite=ENOSPC", "rdelay=20ms"]
    command, uri = nbdkit(tmp_path, *filters, "memory", "4M", *options)

    async def main() -> None:
        member = open_export(uri, lock=False)
        with pytest.raises(MemberError, match="write at byte 4096 failed") as error:
            await member.writev(4096, [b"x" * 512])
        assert error.value.errno == 28
        buffers = [bytearray(512) for _ in range(16)]
        begin_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number, buffer in enumerate(buffers):
                nursery.start_soon(member.readv, number * 512, [buffer])
        assert 0.02 <= trio.current_time() - begin_s < 0.3, "not one after the other"
        member.close()

    with running(command, tmp_path / "n.sock"):
        trio.run(main)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    return make_certificates(tmp_path)


def test_tls_with_certificates_of_both_sides(tmp_path: Path, certificates: Path) -> None:
    security = ["--tls=require", f"--tls-certificates={certificates}", "--tls-verify-peer"]
    command, plain = nbdkit(tmp_path, *security, "memory", "4M")
    secure = plain.replace("nbd+", "nbds+") + f"&tls-certificates={certificates}"

    async def main() -> None:
        member = open_export(secure + "&tls-hostname=store", lock=True)
        data = random.Random(1).randbytes(1 << 20)
        await member.writev(256 << 10, [data])
        await member.flush()
        buffer = bytearray(len(data))
        await member.readv(256 << 10, [buffer])
        assert buffer == data
        member.close()

    with running(command, tmp_path / "n.sock"):
        trio.run(main)
        for uri, message in (
            (plain, r"wants TLS.*nbds://"),
            (secure + "&tls-hostname=other", "certificate is refused: Hostname mismatch"),
            (plain.replace("nbd+", "nbds+") + "&tls-hostname=store", "certificate is refused"),
            (secure.replace("/pki", "/none"), "cannot be used"),
        ):
            with pytest.raises(RaidxError, match=message) as error:
                open_export(uri)
            assert "\n" not in str(error.value)
    command, plain = nbdkit(tmp_path, "memory", "4M")
    with (
        running(command, tmp_path / "n.sock"),
        pytest.raises(RaidxError, match="the server cannot do TLS; switch it on there, or"),
    ):
        open_export(plain.replace("nbd+", "nbds+"))
    with suppress(FileNotFoundError):
        (tmp_path / "n.sock").unlink()
