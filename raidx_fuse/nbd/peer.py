"""Which user is at the other end of a TCP connection on loopback.

The kernel lists the TCP sockets of this network namespace with their owners. The client's has the
addresses of ours the other way round. One that its process has closed already has no owner: it is
listed with uid 0 and inode 0, and counts as unknown.

     sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
      3: 0100007F:A2C4 0100007F:2A39 01 00000000:00000000 00:00000000 00000000  1000        0 71236
"""

from __future__ import annotations

import socket
import struct

from raidx_fuse.members.kernel_files import kernel_text
from raidx_fuse.members.threads import in_thread

_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
_UID, _INODE = 7, 9  # columns


async def owner_of_peer(sock: socket.socket) -> int | None:
    """Return the uid of the client of *sock*, which was accepted; None if nobody knows it.

    Raises OSError, RaidxError.
    """
    peer, own = (_shown(sock.family, *end()[:2]) for end in (sock.getpeername, sock.getsockname))
    table = _TABLES[socket.AddressFamily(sock.family)]
    return await in_thread(table, lambda: _owner(kernel_text(table), f" {peer} {own} "))


def _owner(table: str, wanted: str) -> int | None:
    at = table.find(wanted)
    if at < 0:
        return None
    begin = table.rfind("\n", 0, at) + 1
    columns = table[begin : table.find("\n", at)].split()
    return int(columns[_UID]) if int(columns[_INODE]) else None


def _shown(family: int, host: str, port: int) -> str:
    """Return an address as the kernel shows it: words of 32 bits in the order of the machine."""
    packed = socket.inet_pton(family, host.partition("%")[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
