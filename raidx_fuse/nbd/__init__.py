"""The NBD front end: volumes as exports of an NBD server."""
