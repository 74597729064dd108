"""What the server prints of itself is read by every client."""

from __future__ import annotations

import pytest

from raidx_fuse.members.nbd.uri import parse_uri
from raidx_fuse.nbd.address import Address


@pytest.mark.parametrize("export", ["disk", "my disk", "50%", "a?b#c&d", "ä", "a/b", "%2e"])
@pytest.mark.parametrize(
    "address",
    [
        *(
            Address(path=path)
            for path in ("/run/s", "/run/my socket", "/run/a&b=#?+%20", "/\udcff")
        ),
        *(Address(host=host, port=11) for host in ("127.0.0.1", "::1")),
    ],
)
def test_a_printed_uri_names_the_same_export(address: Address, export: str) -> None:
    for tls in (False, True):
        uri = address.uri(export, tls=tls)
        assert " " not in uri
        assert uri.isascii()
        parsed = parse_uri(uri)
        assert (parsed.export, parsed.socket, parsed.tls) == (export, address.path, tls)
        assert (parsed.host, parsed.port) == (address.host, address.port) or address.path
