"""The NBD protocol without I/O: handshake and transmission of both sides."""
