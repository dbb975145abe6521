"""Reload of a real server by SIGHUP, and by a change of its keys or its certificate."""

import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import create_certificate
from tests.support.processes import Process, running_process

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(180)]

KEYS = '[[keys]]\nkey = "{}"\ntenant = "acme"\n'


class Server:
    def __init__(self, process: Process, folder: Path) -> None:
        self.process, self.folder = process, folder
        process.wait_for_output(r"Ready (after)")
        self.url = process.wait_for_output(r"Listening on +wss?://(\S+)/v1/realtime")

    def status(self, key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"https://{self.url}/v1/models", headers=headers)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with urllib.request.urlopen(request, context=context, timeout=10) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code

    def certificate(self) -> str:
        host, _, port = self.url.partition(":")
        return ssl.get_server_certificate((host, int(port)), timeout=10)

    def replace(self, name: str, text: str) -> None:
        """Replace a file of the folder at once, so that the server does not read half of it."""
        new = self.folder / "new"
        new.write_text(text)
        new.replace(self.folder / name)

    def wait_until_reloaded(self) -> None:
        """Wait until the log says that the next reload was made, or refused."""
        self.process.wait_for_output(r"\b(reloaded)\b")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    create_certificate(tmp_path / "tls")
    (tmp_path / "keys").write_text(KEYS.format("key-one"))
    (tmp_path / "config.toml").write_text("requests_per_minute = 100\n")
    with running_process(
        *("serve", "--port", "0", "--no-web", "--threads", "1", "--store", "memory"),
        *("--api-keys-file", str(tmp_path / "keys"), "--config", str(tmp_path / "config.toml")),
        *("--ssl-certfile", str(tmp_path / "tls" / "certificate.pem")),
        *("--ssl-keyfile", str(tmp_path / "tls" / "key.pem")),
    ) as process:
        yield Server(process, tmp_path)


async def test_server_reloads_on_sighup_and_when_a_file_has_changed(server: Server) -> None:
    assert [server.status(key) for key in ("key-one", "key-two")] == [200, 401]
    server.replace("keys", KEYS.format("key-two"))
    server.wait_until_reloaded()  # without a signal
    assert [server.status(key) for key in ("key-one", "key-two")] == [401, 200]

    before = server.certificate()
    other, key = create_certificate(server.folder / "other")
    server.replace("tls/certificate.pem", other.read_text())  # not that of the key yet
    server.wait_until_reloaded()
    assert "the previous settings stay in force" in server.process.output
    assert server.certificate() == before
    server.replace("tls/key.pem", key.read_text())
    server.wait_until_reloaded()
    assert server.certificate() == other.read_text()

    server.process.send_signal(signal.SIGHUP)
    server.wait_until_reloaded()
    assert server.process.output.count(" reloaded: 1 keys of 1 tenants") == 3
    server.replace("keys", "nothing\n")
    server.wait_until_reloaded()
    assert "line 1: expected KEY = TENANT" in server.process.output
    assert server.status("key-two") == 200
    assert "key-two" not in server.process.output
    assert "takes effect at the next start" not in server.process.output
    server.replace("keys", KEYS.format("key-two"))
    limits = 'requests_per_minute = 100\noperations_per_second = 50\nheld_bytes_max = "1GiB"\n'
    server.replace("config.toml", f"{limits}resume_window_s = 5\n")
    server.wait_until_reloaded()
    server.process.wait_for_output("(the change of --resume-window-s takes effect)")
    assert "change of --operations" not in server.process.output, "in force at once"
    assert "change of --held" not in server.process.output
    server.replace("config.toml", f"{limits}temperature = 1\n")
    server.wait_until_reloaded()
    server.process.wait_for_output("(the change of --temperature takes effect)")
    server.process.send_signal(signal.SIGTERM)
    assert await server.process.wait_exit() == 0
