"""Self-signed certificate for the host name `engine`."""

import shutil
import subprocess
from pathlib import Path

import pytest


def create_certificate(folder: Path) -> tuple[Path, Path]:
    """Create a certificate in `folder`. Returns the PEM files of the certificate and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed (Debian: apt-get install openssl)")
    folder.mkdir(exist_ok=True)
    key, pem = folder / "key.pem", folder / "certificate.pem"
    options = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    output = ("-keyout", key, "-out", pem, "-subj", "/CN=engine", "-days", "2")
    subprocess.run(["openssl", "req", *options, *output], check=True, capture_output=True)
    return pem, key
