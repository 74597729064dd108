"""URIs of NBD exports, and the one line that each mistake gets."""

from __future__ import annotations

import os

import pytest

from raidx_fuse.errors import UsageError
from raidx_fuse.members.nbd.uri import NbdUri, is_uri, parse_uri
from raidx_fuse.members.open import open_member
from raidx_fuse.members.spec import absolute, parse_spec

GOOD = [
    ("nbd://host/export", NbdUri("export", "host")),
    ("nbd://host", NbdUri("", "host")),
    ("NBD://host:10810/a%20b/c", NbdUri("a b/c", "host", 10810)),
    ("nbd://[::1]/x", NbdUri("x", "::1")),
    ("nbd+unix:///x?socket=/run/n.sock", NbdUri("x", socket="/run/n.sock")),
    (
        "nbds://host/x?tls-certificates=/etc/pki&tls-hostname=store",
        NbdUri("x", "host", tls=True, certificates="/etc/pki", tls_hostname="store"),
    ),
    ("nbds+unix:///?socket=/s", NbdUri("", socket="/s", tls=True)),
    ("nbd+unix:///?socket=/run/a+b%20c", NbdUri("", socket="/run/a+b c")),
]
BAD = [
    ("nbd://", "needs a host"),
    ("nbd:///export", "needs a host"),
    ("nbd+unix:///x", "needs socket=PATH"),
    ("nbd+unix://host/x?socket=/s", "needs socket=PATH and no host"),
    ("nbd://host/x?socket=/s", "needs a host and no socket="),
    ("nbd://host:99999/x", "Port out of range"),
    ("nbd://host:port/x", "Port could not be cast"),
    ("nbd://user@host/x", "has a user"),
    ("nbd://host/x#part", "fragment"),
    ("nbd://host/x?colour=red", "colour= is unknown"),
    ("nbd+unix:///x?socket=/a&socket=/b", "twice"),
    ("nbd+unix:///x?socket=", "empty"),
    ("nbd://host/x?tls-certificates=/c", "need nbds://"),
    ("nbd://host/" + "x" * 5000, "longer than 4096"),
    ("nbd+tcp://host/x", "does not begin with one of nbd://, nbds://"),
    ("nbd+vsock://1/x", "does not begin with one of nbd://, nbds://"),
    ("nbd://host:0/x", "there is no port 0"),
    ("nbd://a..b/x", "'a..b' cannot be the name of a host"),
    ("nbd://" + "a" * 70 + "/x", "cannot be the name of a host"),
    ("nbds://host/x?tls-hostname=.host", "'.host' cannot be the name of a host"),
]


@pytest.mark.parametrize(("text", "uri"), GOOD)
def test_a_uri_is_understood_and_written_again(text: str, uri: NbdUri) -> None:
    assert is_uri(text)
    assert parse_uri(text) == uri
    assert parse_uri(str(uri)) == uri
    assert parse_spec(text).path == str(uri)


@pytest.mark.parametrize(("text", "why"), BAD)
def test_a_mistake_is_named_with_the_right_form(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        open_member(text)
    assert "write nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=PATH" in str(error.value)
    assert "\n" not in str(error.value)


def test_one_export_has_one_identity() -> None:
    same = ["nbd://Host/x", "nbd://host:10809/x", "nbds://host/x?tls-hostname=y"]
    assert len({parse_uri(text).identity for text in same}) == 1
    other = ["nbd://host/x", "nbd://host/y", "nbd://host:1/x", "nbd+unix:///x?socket=/host"]
    assert len({parse_uri(text).identity for text in other}) == len(other)


def test_the_daemon_gets_absolute_paths() -> None:
    here = os.getcwd()
    assert absolute("nbd+unix:///x?socket=s") == f"nbd+unix:///x?socket={here}/s"
    assert absolute("nbd://h:10809/x,model=hdd") == "nbd://h/x,model=hdd"
    assert absolute("disk.img,model=hdd") == f"{here}/disk.img,model=hdd"


def test_an_export_has_its_own_size() -> None:
    with pytest.raises(UsageError, match="the size of an export is that of its server"):
        parse_spec("nbd://host/x,size=1GiB")


def test_paths_are_no_uris() -> None:
    assert not any(map(is_uri, ("nbd:/x", "/nbd://x", "http://x", "disk.img")))
