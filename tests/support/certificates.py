"""A certificate of a host named `engine`, signed by itself."""

import shutil
import subprocess
from pathlib import Path

import pytest


def certificate(folder: Path) -> tuple[Path, Path]:
    """And its key, PEM."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed (Debian: apt-get install openssl)")
    folder.mkdir(exist_ok=True)
    key, made = folder / "key.pem", folder / "certificate.pem"
    kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    where = ("-keyout", key, "-out", made, "-subj", "/CN=engine", "-days", "2")
    subprocess.run(["openssl", "req", *kind, *where], check=True, capture_output=True)
    return made, key
