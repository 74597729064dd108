"""The connection of a client: its socket, with TLS or without, used by the event loop only.

Who is at the other end of a TCP connection on loopback: the kernel lists the TCP sockets of this
network namespace with their owners. The client's has the addresses of ours the other way round. One
that its process has closed already has no owner: it is listed with uid 0 and inode 0, and counts as
unknown.

  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   3: 0100007F:A2C4 0100007F:2A39 01 00000000:00000000 00:00000000 00000000  1000        0 71236
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from raidx_fuse.members.kernel_files import kernel_text
from raidx_fuse.members.nbd.pipe import Piece, Pipe
from raidx_fuse.members.nbd.protocol.wire import Export
from raidx_fuse.members.threads import in_thread

_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
_UID, _INODE = 7, 9  # columns


class ClientPipe(Pipe):
    """A socket that was accepted.

    Only one task reads. Any task may `put` replies: what the socket does not take now, the task of
    `drain` sends later.
    """

    export: Export  # set when the client has opened it

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    async def owner_of_peer(self) -> int | None:
        """Return the uid of the client on loopback, None if nobody knows it.

        Raises OSError, RaidxError.
        """
        sock = self._socket
        ends = sock.getpeername(), sock.getsockname()
        peer, own = (_shown(sock.family, *end[:2]) for end in ends)
        table = _TABLES[socket.AddressFamily(sock.family)]
        return await in_thread(table, lambda: _owner(kernel_text(table), f" {peer} {own} "))

    def try_receive(self, buffer: memoryview) -> int:
        """Fill the beginning of *buffer* without blocking; return how many bytes, -1 for none yet.

        0 is the end. Raises OSError.
        """
        if self._tls is not None:
            return -1  # `receive_into` decrypts
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return -1

    def put(self, pieces: Sequence[Piece]) -> bool:
        """Send *pieces* in order, or keep what does not go without blocking; return if all went.

        What is kept is copied. Raises OSError.
        """
        if self._rest:  # `drain` is at it
            coded = pieces if self._tls is None else [self._encrypted(pieces)]
            self._rest += map(bytes, coded)
            return False
        if self.try_send(pieces):
            return True
        self._rest = [bytes(piece) for piece in self._rest]
        return False

    def close(self) -> None:
        super().close()
        self._rest = []  # nobody takes it any more

    @property
    def waiting_bytes(self) -> int:
        """How much the client has not taken yet."""
        return sum(map(len, self._rest))


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
