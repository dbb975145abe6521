"""Self-signed certificate for the host name `engine`."""

import shutil
import subprocess
from pathlib import Path

import pytest


def create_certificate(folder: Path, address: str = "") -> tuple[Path, Path]:
    """Create a certificate in `folder`, also for an IP address if one is given. Returns the PEM
    files of the certificate and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed (Debian: apt-get install openssl)")
    folder.mkdir(exist_ok=True)
    key, pem = folder / "key.pem", folder / "certificate.pem"
    options = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    output = ("-keyout", key, "-out", pem, "-subj", "/CN=engine", "-days", "2")
    names = ("-addext", f"subjectAltName=IP:{address}") if address else ()
    subprocess.run(["openssl", "req", *options, *output, *names], check=True, capture_output=True)
    return pem, key


CA_CONFIG = """
[ca]
default_ca = ours
[ours]
database = {folder}/index
serial = {folder}/serial
new_certs_dir = {folder}
default_md = sha256
policy = any
[any]
commonName = supplied
"""


def create_expired_certificate(folder: Path) -> tuple[Path, Path]:
    """Create a certificate like `create_certificate`, which was valid for a day of 2020."""
    pem, key = create_certificate(folder)
    config, request = folder / "ca.cnf", folder / "request.pem"
    config.write_text(CA_CONFIG.format(folder=folder))
    (folder / "index").touch()
    (folder / "serial").write_text("01\n")
    ask = ("req", "-new", "-key", key, "-subj", "/CN=engine", "-out", request)
    sign = ("ca", "-batch", "-selfsign", "-config", config, "-keyfile", key, "-in", request)
    dates = ("-startdate", "20200101000000Z", "-enddate", "20200102000000Z")
    for command in (ask, (*sign, *dates, "-notext", "-out", pem)):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return pem, key
