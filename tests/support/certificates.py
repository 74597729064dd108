"""Certificates for tests of TLS, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificates(folder: Path) -> Path:
    """Make an authority, and certificates of it for a server and a client; return their folder."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    pki = folder / "pki"
    pki.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=pki, check=True, capture_output=True)

    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "9"]
    openssl(*new, "-x509", "-subj", "/CN=ca", "-keyout", "ca-key.pem", "-out", "ca-cert.pem")
    (pki / "names").write_text("subjectAltName=DNS:store")
    signed = ["-CA", "ca-cert.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "9"]
    for name in ("server", "client"):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}-key.pem", "-out", f"{name}.csr")
        request = ["x509", "-req", "-in", f"{name}.csr", "-out", f"{name}-cert.pem"]
        openssl(*request, *signed, "-extfile", "names")
    return pki
