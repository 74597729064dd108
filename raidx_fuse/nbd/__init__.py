"""The NBD front end: volumes as exports of an NBD server.

A client is accepted by door.py; connection.py reads its requests (members/nbd/protocol/ has the
bytes of both ends), requests.py carries them out on a `Volume` (pool/volume.py).
"""
