"""The download of a checkpoint, from a server that answers as the Hugging Face hub does."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import huggingface_hub
import pytest

from continuo.engine.device import weights
from continuo.engine.errors import ModelError

pytestmark = pytest.mark.torch

MODEL = "someone/something"
COMMIT = "a" * 40
FILES = {
    "config.json": b"{}",
    "model.safetensors": bytes(30_000_000),
    "tokenizer.json": b"{}",
    "onnx/model.onnx": bytes(1000),
}


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that a download needs."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._respond()

    def do_GET(self) -> None:
        self._respond()

    def _respond(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith(f"/api/models/{MODEL}/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": oid(data)}
                for name, data in FILES.items()
            ]
            self._send(json.dumps(tree).encode())
        elif path.startswith(f"/api/models/{MODEL}/revision/") or path == f"/api/models/{MODEL}":
            siblings = [{"rfilename": name} for name in FILES]
            info = {"id": MODEL, "modelId": MODEL, "sha": COMMIT, "siblings": siblings}
            self._send(json.dumps(info).encode())
        elif (name := path.removeprefix(f"/{MODEL}/resolve/{COMMIT}/")) in FILES:
            self._send(FILES[name])
        else:
            self.send_error(404)

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{oid(body)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server
        server.shutdown()
        thread.join()


def test_download_reports_its_size_and_progress(hub: ThreadingHTTPServer) -> None:
    reported: list[tuple[str, float]] = []
    folder = weights.resolve(MODEL, None, lambda *progress: reported.append(progress))
    assert (folder / "model.safetensors").stat().st_size == 30_000_000
    assert not (folder / "onnx").exists()
    assert {what for what, _ in reported} == {f"fetching {MODEL} (0.03 GB)"}
    fractions = [fraction for _, fraction in reported]
    assert len(fractions) >= 3
    assert fractions[-1] == pytest.approx(1, abs=1e-5)
    assert all(0 <= fraction <= 1 for fraction in fractions)

    reported.clear()
    assert weights.resolve(MODEL, None, lambda *progress: reported.append(progress)) == folder
    assert not any("GB" in what for what, _ in reported)


def test_unknown_model_is_refused(hub: ThreadingHTTPServer) -> None:
    with pytest.raises(ModelError, match="nobody/nothing: "):
        weights.resolve("nobody/nothing", None, lambda _what, _fraction: None)
