"""Where the NBD server listens, and with which certificates.

unix:PATH           a Unix socket that only its owner can use
PORT, :PORT         TCP on loopback; without TLS for root and the owner only, unless any user may
HOST, HOST:PORT     TCP; beyond loopback only with TLS
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from raidx_fuse.errors import RaidxError, Reason, UsageError
from raidx_fuse.members.nbd.pipe import SOCKET_PATH_BYTES_MAX
from raidx_fuse.members.nbd.uri import PORT, NbdUri

LOOPBACK = "127.0.0.1"
_FORM = "write unix:PATH, PORT or HOST:PORT"


@dataclass(frozen=True, slots=True)
class Address:
    """A Unix socket (*path*), or TCP (*host*, *port*)."""

    path: str = ""
    host: str = ""
    port: int = PORT

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def place(self) -> str:
        """The path that commands about this server are given, as others are a mount point."""
        return self.path or f"/{self}"

    def uri(self, export: str, *, tls: bool) -> str:
        """Return the URI of *export* there; names are percent-encoded."""
        return str(NbdUri(export, self.host, self.port, self.path, tls))


def parse_address(text: str, *, tls: bool) -> Address:
    """Return the address that *text* names. Raises UsageError, which shows the right form."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path:
            raise UsageError(f"{text} names no socket", action=_FORM)
        path = os.path.realpath(path)
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise UsageError(f"the path {path[:40]}... is longer than a socket's may be")
        return Address(path)
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = ("", text) if text.isdecimal() else (text, str(PORT))
    if not port.isdecimal() or not 0 < int(port) < 1 << 16 or "/" in host:
        raise UsageError(f"{text} is no address", action=_FORM)
    address = Address(host=host.strip("[]") or LOOPBACK, port=int(port))
    if not tls and not _is_loopback(address.host):
        raise UsageError(
            f"{address} can be reached from other machines: that needs TLS",
            action="give --tls DIR with server-cert.pem, server-key.pem and ca-cert.pem",
        )
    return address


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def listener(address: Address, backlog: int) -> socket.socket:
    """Return a socket that listens on *address*. Raises RaidxError."""
    try:
        if not address.path:
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            return socket.create_server(
                (address.host, address.port), family=family, backlog=backlog
            )
        _remove_stale(address.path)
        sock = socket.socket(socket.AF_UNIX)
        mask = os.umask(0o177)  # no moment in which another user could connect
        try:
            sock.bind(address.path)
            sock.listen(backlog)
        except OSError:
            sock.close()
            raise
        finally:
            os.umask(mask)
        return sock
    except OSError as error:
        raise RaidxError(
            f"{address} cannot be listened on: {error.strerror or error}", reason=Reason.FILE
        ) from None


def remove(address: Address) -> None:
    """Remove the socket of *address* from the file system, unless another server listens on it."""
    if address.path:
        with suppress(OSError, RaidxError):
            _remove_stale(address.path)


def _remove_stale(path: str) -> None:
    """Remove a socket without a listener. Raises OSError, RaidxError."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):  # connecting to any file is "refused"
            raise RaidxError(
                f"{path} is no socket but a file", action="choose another path", reason=Reason.FILE
            )
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise RaidxError(
        f"a server listens on {path} already", action="choose another path", reason=Reason.IN_USE
    )


def tls_context(folder: str) -> ssl.SSLContext:
    """Return the settings of TLS: clients need a certificate of ca-cert.pem. Raises UsageError."""
    try:
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=os.path.join(folder, "ca-cert.pem")
        )
        context.load_cert_chain(
            os.path.join(folder, "server-cert.pem"), os.path.join(folder, "server-key.pem")
        )
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"the certificates in {folder} cannot be used: {error.strerror or error}",
            action="it needs server-cert.pem, server-key.pem and ca-cert.pem, that of the clients",
            reason=Reason.FILE,
        ) from None
    context.verify_mode = ssl.CERT_REQUIRED
    return context
