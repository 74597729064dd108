"""`raidx serve` as a user runs it, against clients that are not ours; those not there are skipped.

Installed by examples/setup.sh --dev: nbdinfo, nbdcopy, nbdsh (libnbd-bin, python3-libnbd),
qemu-img, qemu-io (qemu-utils), fio.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.members.nbd.pipe import dial
from raidx_fuse.members.nbd.uri import parse_uri
from raidx_fuse.nbd.door import CLIENTS_MAX
from tests.support.certificates import make_certificates
from tests.support.command import PATH, RAIDX, checked, raidx
from tests.support.nbd_server import read, write
from tests.support.reasons import because

MIB = 1 << 20
SYSTEM_PATH = "/usr/bin:/bin"


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a program that must succeed; skip the test if it is not installed."""
    if shutil.which(command[0], path=PATH) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=cwd)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a raid5 array; yield the URI of its volume."""
    folder = tmp_path_factory.mktemp("served")
    checked(folder, "create --layout raid5 --size 24M m1 m2 m3")
    checked(folder, "serve m1 m2 m3 --nbd unix:s")
    yield f"nbd+unix:///disk?socket={folder}/s"
    checked(folder, f"umount {folder}/s")
    checked(folder, "check m1 m2 m3")


def test_nbdinfo_sees_what_is_offered_and_what_is_written(served: str) -> None:
    (about,) = json.loads(run("nbdinfo", "--json", served))["exports"]
    assert about["export-size"] > 40 * MIB
    for offer in ("can_flush", "can_fua", "can_trim", "can_zero", "can_fast_zero"):
        assert about[offer], offer
    assert about["can_multi_conn"]
    assert about["can_cache"] != "none"
    assert not about["is_read_only"]
    script = ["-c", "write -P 5 1M 2M", "-c", "flush", "-c", "discard 1M 1M"]
    run("qemu-io", "-f", "raw", *script, served)
    extents = json.loads(run("nbdinfo", "--json", "--map", served))
    data = [e for e in extents if not e["type"]]
    assert [(e["offset"], e["length"]) for e in data] == [(2 * MIB, MIB)]
    run("qemu-io", "-f", "raw", "-c", "read -P 0 1M 1M", "-c", "read -P 5 2M 1M", served)


def test_nbdcopy_and_qemu_img_copy_to_and_fro(served: str, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    size = int(run("nbdinfo", "--size", served))
    with source.open("wb") as file:
        file.write(random.Random(1).randbytes(5 * MIB))
        file.seek(9 * MIB)
        file.write(random.Random(2).randbytes(3 * MIB))
        file.truncate(size)
    run("nbdcopy", str(source), served)
    run("nbdcopy", served, str(back))
    assert back.read_bytes() == source.read_bytes()
    told = run("qemu-img", "compare", "-f", "raw", "-F", "raw", str(source), served)
    assert "identical" in told
    run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", str(source), served)
    run("qemu-img", "compare", "-f", "raw", "-F", "raw", str(source), served)


def test_qemu_io_finds_what_it_wrote_around_discards(served: str) -> None:
    rng = random.Random(3)
    model = bytearray(4 * MIB)
    run("qemu-io", "-f", "raw", "-c", "discard 0 4M", served)
    script = []
    for number in range(1, 41):
        at = rng.randrange(0, 3 * MIB)
        length = rng.randint(1, 300_000)
        if number % 4:
            script.append(f"write {'-f ' if number % 5 == 0 else ''}-P {number} {at} {length}")
            model[at : at + length] = bytes([number]) * length
        else:
            script.append(f"{rng.choice(('discard', 'write -z -u', 'write -z'))} {at} {length}")
            model[at : at + length] = bytes(length)
    at = 0
    while at < len(model):  # one read for each run of equal bytes
        end = at + 1
        while end < len(model) and model[end] == model[at]:
            end += 1
        script.append(f"read -P {model[at]} {at} {end - at}")
        at = end
    told = run("qemu-io", "-f", "raw", *(part for line in script for part in ("-c", line)), served)
    assert "failed" not in told


def test_nbdsh_zeroes_fast_or_not_at_all(served: str) -> None:
    script = """
import errno, nbd
assert h.can_fast_zero() and h.can_cache()
h.pwrite(b"x" * 65536, 30 << 20)
try:
    h.zero(4096, 30 << 20, nbd.CMD_FLAG_FAST_ZERO)
except nbd.Error as error:
    assert error.errno == "ENOTSUP", error.errno
else:
    raise AssertionError("a part of a chunk takes a write")
assert h.pread(4, 30 << 20) == b"xxxx"
h.zero(1 << 20, 30 << 20, nbd.CMD_FLAG_FAST_ZERO)
h.cache(1 << 20, 30 << 20)
assert h.pread(1 << 20, 30 << 20) == bytes(1 << 20)
"""
    has_nbd = ["env", f"PATH={SYSTEM_PATH}", "python3", "-c", "import nbd"]  # not that of a venv
    if subprocess.run(has_nbd, capture_output=True, check=False).returncode:
        pytest.skip("the system's Python has no module nbd (python3-libnbd)")
    run("env", f"PATH={SYSTEM_PATH}", "nbdsh", "-u", served, "-c", script)


def test_commands_take_the_place_of_the_socket(served: str) -> None:
    folder = Path(served.partition("socket=")[2]).parent
    status = json.loads(checked(folder, f"status {folder}/s --json"))
    text = json.dumps(status)
    assert served in text
    refused = raidx(folder, f"trim {folder}/s 30M 400M")
    assert refused.status == 2
    run("qemu-io", "-f", "raw", "-c", "write -P 5 20M 1M", served)
    refused = raidx(folder, f"trim {folder}/s 20M 1M")
    assert "--lose-data" in refused.stderr
    assert "given back" in checked(folder, f"trim {folder}/s 20M 1M --lose-data")
    run("qemu-io", "-f", "raw", "-c", "read -P 0 20M 1M", served)


def test_thousands_of_connections_beyond_the_limit_are_refused(served: str) -> None:
    place = served.partition("socket=")[2]
    pipes = [dial(parse_uri(served)) for _ in range(CLIENTS_MAX)]
    try:
        for _ in range(3000):
            with socket.socket(socket.AF_UNIX) as refused:
                refused.connect(place)
                assert not refused.recv(1)
        for pipe in pipes[::16]:  # the others notice nothing
            assert read(pipe, 0, 512)
    finally:
        for pipe in pipes:
            pipe.close()
    deadline_s = time.monotonic() + 60
    while True:  # it notices one after the other that they have left
        try:
            again = dial(parse_uri(served))
            break
        except (RaidxError, OSError):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    again.close()


def test_it_needs_no_fuse(tmp_path: Path) -> None:
    checked(tmp_path, "create --layout raid1 --size 24M m1 m2")
    program = (
        "import sys; sys.modules['pyfuse3'] = None; from raidx_fuse.cli.main import main; main()"
    )
    argv = [sys.executable, "-c", program, "serve", "m1", "m2", "--nbd", "unix:s", "--read-only"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    uri = f"nbd+unix:///?socket={tmp_path}/s"
    try:
        with pytest.raises(AssertionError, match="Permission denied"):
            run("qemu-io", "-f", "raw", "-c", "write 0 512", uri)
    finally:
        checked(tmp_path, f"umount {tmp_path}/s")


def test_tls_wants_a_certificate_of_the_client(tmp_path: Path) -> None:
    pki = make_certificates(tmp_path)
    checked(tmp_path, "create --layout raid1 --size 24M m1 m2")
    checked(tmp_path, f"serve m1 m2 --nbd unix:s --tls {pki}")
    uri = f"nbds+unix:///disk?socket={tmp_path}/s&tls-hostname=store&tls-certificates={pki}"
    try:
        pipe = dial(parse_uri(uri))
        assert pipe.export.size_bytes > MIB
        write(pipe, 5, b"secret")
        assert read(pipe, 0, 16) == b"\0" * 5 + b"secret" + b"\0" * 5
        pipe.close()
        with pytest.raises(UsageError, check=because(Reason.SERVER_REFUSED)):
            dial(parse_uri(f"nbd+unix:///disk?socket={tmp_path}/s"))
        os.rename(pki / "client-cert.pem", pki / "hidden.pem")
        with pytest.raises((RaidxError, OSError)):
            read(dial(parse_uri(uri)), 0, 16)
    finally:
        checked(tmp_path, f"umount {tmp_path}/s")


def test_what_cannot_be_served_is_said_in_one_line(tmp_path: Path) -> None:
    checked(tmp_path, "create --layout raid1 --size 24M m1 m2")
    for line, told in (
        ("serve m1 m2 --nbd 0.0.0.0:5", "needs TLS"),
        ("serve m1 m2 --nbd unix:s --tls nowhere", "cannot be used"),
        ("serve m1 m2 --nbd unix:none/s", "cannot be listened on"),
        ("mount m1 m2 . --tls nowhere", "--tls is for --nbd"),
    ):
        done = raidx(tmp_path, line)
        assert done.status, line
        assert told in done.stderr
        assert done.stderr.count("\n") == 1
    assert os.access(RAIDX, os.X_OK)
