"""Names of exports: the NBD URI scheme, as libnbd, qemu and nbdkit use it.

    nbd://host[:port]/export                          TCP, port 10809
    nbd+unix:///export?socket=PATH                    a Unix socket
    nbds://host/export?tls-certificates=DIR           TLS; also nbds+unix://

DIR holds ca-cert.pem and, if the server asks for them, client-cert.pem and client-key.pem.
``tls-hostname=NAME`` is the name in the server's certificate if it is not the host.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from raidx_fuse.errors import UsageError
from raidx_fuse.members.base import Identity
from raidx_fuse.members.nbd.protocol.wire import STRING_BYTES_MAX

PORT = 10809
SCHEMES = ("nbd", "nbds", "nbd+unix", "nbds+unix")
FORM = "nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=PATH"

_QUERIES = ("socket", "tls-certificates", "tls-hostname")
_IDENTITY_SPACE = -2  # files have the device number here, block devices -1
_SAFE = "/:@,+=~!$'()*;"


@dataclass(frozen=True, slots=True)
class NbdUri:
    """One export: *socket* is the path of a Unix socket, or "" for TCP to *host* and *port*."""

    export: str
    host: str = ""
    port: int = PORT
    socket: str = ""
    tls: bool = False
    certificates: str = ""
    tls_hostname: str = ""

    def __str__(self) -> str:
        """Return the URI in its shortest form, with absolute paths."""
        scheme = "nbds" if self.tls else "nbd"
        place = f"[{self.host}]" if ":" in self.host else self.host
        if self.socket:
            scheme += "+unix"
        elif self.port != PORT:
            place += f":{self.port}"
        options = {
            "socket": self.socket,
            "tls-certificates": self.certificates,
            "tls-hostname": self.tls_hostname,
        }
        given = "&".join(f"{key}={_quoted(value)}" for key, value in options.items() if value)
        query = f"?{given}" if given else ""
        return f"{scheme}://{place}/{_quoted(self.export)}{query}"

    @property
    def identity(self) -> Identity:
        """Return the same value for all ways of writing this URI."""
        place = f"{self.socket or (self.host.lower(), self.port)}/{self.export}"
        digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
        return _IDENTITY_SPACE, int.from_bytes(digest, "big")


def _quoted(text: str) -> str:
    return quote(text, _SAFE, errors="surrogateescape")


def is_uri(text: str) -> bool:
    """Return whether *text* is meant as the URI of an export: also with a scheme of others."""
    scheme, mark, _ = text.partition("://")
    return bool(mark) and scheme.lower().startswith("nbd")


def parse_uri(text: str) -> NbdUri:
    """Return the export that *text* names. Raises UsageError, which shows the right form."""
    try:
        parts = urlsplit(text)
        port = PORT if parts.port is None else parts.port
        query = parts.query.replace("+", "%2B")  # no form: a plus sign means itself
        queries = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), errors="surrogateescape"
        )
    except ValueError as error:
        raise _wrong(text, str(error)) from None
    scheme = parts.scheme.lower()
    options: dict[str, str] = {}
    for key, value in queries:
        if key not in _QUERIES:
            raise _wrong(text, f"{key}= is unknown, there are {', '.join(_QUERIES)}")
        if key in options or not value:
            raise _wrong(text, f"{key}= is given twice or empty")
        options[key] = value
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise _wrong(text, f"it does not begin with one of {known}")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _wrong(text, "it has a user, a password or a fragment")
    tls, unix = scheme.startswith("nbds"), scheme.endswith("+unix")
    if unix != ("socket" in options) or unix == bool(parts.hostname):
        need = "socket=PATH and no host" if unix else "a host and no socket="
        raise _wrong(text, f"{scheme}:// needs {need}")
    if not port:
        raise _wrong(text, "there is no port 0")
    for host in (parts.hostname or "", options.get("tls-hostname", "")):
        try:
            host.encode("idna")
        except UnicodeError:
            raise _wrong(text[:100], f"{host[:70]!r} cannot be the name of a host") from None
    if not tls and any(key.startswith("tls") for key in options):
        raise _wrong(text, "options of TLS need nbds://")
    export = unquote(parts.path.removeprefix("/"))
    if len(export.encode()) > STRING_BYTES_MAX or "\0" in export:
        raise _wrong(text[:100], "the export's name is longer than 4096 bytes or has a NUL")
    paths = {key: os.path.abspath(options[key]) for key in _QUERIES[:2] if key in options}
    return NbdUri(
        export,
        parts.hostname or "",
        port,
        paths.get("socket", ""),
        tls,
        paths.get("tls-certificates", ""),
        options.get("tls-hostname", ""),
    )


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(f"{text} is no URI of an NBD export: {why}", action=f"write {FORM}")
