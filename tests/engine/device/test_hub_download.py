"""The download of a checkpoint, from a server that answers as the Hugging Face hub does."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from huggingface_hub import constants

from continuo.engine.device import weights
from continuo.engine.errors import ModelError
from tests.support.waiting import POLL_S

pytestmark = pytest.mark.torch

MODEL = "someone/something"
COMMIT = "a" * 40
FILES = {
    "config.json": b"{}",
    "model.safetensors": bytes(30_000_000),
    "tokenizer.json": b"{}",
    "onnx/model.onnx": bytes(1000),
}
GATED, PRIVATE = "someone/gated", "someone/private"
WITHOUT_SAFETENSORS = {
    "someone/gguf": {"config.json": b"{}", "something-Q8_0.gguf": bytes(1000)},
    "someone/pickled": {"config.json": b"{}", "pytorch_model.bin": bytes(1000)},
}
QUANTIZED = {"quantization_config": {"quant_method": "awq", "bits": 4}}
REFUSED = {
    "someone/awq": FILES | {"config.json": json.dumps(QUANTIZED).encode()},
    "someone/t5": FILES | {"config.json": b'{"architectures": ["T5ForConditionalGeneration"]}'},
    "someone/weights": {"model.safetensors": bytes(1000)},
}
REPOSITORIES = {MODEL: FILES, GATED: FILES, PRIVATE: FILES, **WITHOUT_SAFETENSORS, **REFUSED}
TOKEN = "hf_of_an_account_with_access"


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
        model = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        files = REPOSITORIES.get(model)
        if files is None:
            self._refuse(404, "RepoNotFound", "Repository not found")
        elif (refusal := self._find_refusal(model, path)) is not None:
            self._refuse(*refusal)
        elif path.startswith(f"/api/models/{model}/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": oid(data)}
                for name, data in files.items()
            ]
            self._send(json.dumps(tree).encode())
        elif path.startswith(f"/api/models/{model}/revision/") or path == f"/api/models/{model}":
            siblings = [{"rfilename": name} for name in files]
            info = {"id": model, "modelId": model, "sha": COMMIT, "siblings": siblings}
            self._send(json.dumps(info).encode())
        elif (name := path.removeprefix(f"/{model}/resolve/{COMMIT}/")) in files:
            self._send(files[name])
        else:
            self.send_error(404)

    def _find_refusal(self, model: str, path: str) -> tuple[int, str, str] | None:
        """Return status, code and message for a request without access. Returns None for one with
        TOKEN, and for the list of the files of a gated model, which needs none."""
        if model not in (GATED, PRIVATE):
            return None
        given = self.headers.get("Authorization")
        if given == f"Bearer {TOKEN}":
            return None
        if given is not None and given != "Bearer hf_of_another":
            return 401, "", "Invalid credentials in Authorization header"
        if model == PRIVATE:
            return 401, "RepoNotFound", "Invalid username or password."
        if "/resolve/" not in path:
            return None
        return (
            (401 if given is None else 403),
            "GatedRepo",
            f"Access to model {model} is restricted.",
        )

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.send_header("X-Error-Message", message)
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()

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


def address(hub: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{hub.server_port}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
        thread.start()
        url = address(server)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server
        server.shutdown()
        thread.join()


def test_download_reports_its_size_and_progress(hub: ThreadingHTTPServer) -> None:
    reported: list[tuple[str, float]] = []
    folder = weights.resolve(MODEL, None, lambda *progress: reported.append(progress))
    assert (folder / "model.safetensors").stat().st_size == 30_000_000
    assert not (folder / "onnx").exists()
    assert {what for what, _ in reported} == {f"fetching {MODEL} (28.6 MiB)"}
    fractions = [fraction for _, fraction in reported]
    assert len(fractions) >= 3
    assert fractions[-1] == pytest.approx(1, abs=1e-5)
    assert all(0 <= fraction <= 1 for fraction in fractions)

    reported.clear()
    assert weights.resolve(MODEL, None, lambda *progress: reported.append(progress)) == folder
    assert not any("iB" in what for what, _ in reported)


def resolve_in_a_new_process(
    hub: ThreadingHTTPServer, model: str, home: Path, **environ: str
) -> str:
    """Download a model as a user does, by environment variables alone. Returns its folder, or the
    message of the error."""
    script = f"""
from continuo.engine.device import weights
from continuo.engine.errors import ModelError
try:
    print(weights.resolve({model!r}, None, lambda _what, _fraction: None))
except ModelError as error:
    print(error.message)
"""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    run = subprocess.run(
        [sys.executable, "-c", script],
        env=inherited | {"HF_ENDPOINT": address(hub), "HF_HOME": str(home), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = run.stdout.splitlines()
    return line


def test_model_is_downloaded_from_the_endpoint_of_the_environment(
    hub: ThreadingHTTPServer, tmp_path: Path
) -> None:
    folder = Path(resolve_in_a_new_process(hub, MODEL, tmp_path))
    assert folder.is_relative_to(tmp_path / "hub")
    assert (folder / "model.safetensors").stat().st_size == 30_000_000
    offline = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    assert resolve_in_a_new_process(hub, MODEL, tmp_path, **offline) == str(folder)


def test_gated_model_is_refused_without_a_token_and_downloaded_with_it(
    hub: ThreadingHTTPServer, tmp_path: Path
) -> None:
    refusal = (
        f"{GATED}: needs an account that has accepted its licence: accept it at "
        f"{address(hub)}/{GATED}, and set HF_TOKEN to a token of this account"
    )
    assert resolve_in_a_new_process(hub, GATED, tmp_path) == refusal
    assert resolve_in_a_new_process(hub, GATED, tmp_path, HF_TOKEN="hf_of_another") == refusal
    folder = Path(resolve_in_a_new_process(hub, GATED, tmp_path, HF_TOKEN=TOKEN))
    assert (folder / "model.safetensors").exists()


def test_token_that_the_hub_does_not_know_is_named(
    hub: ThreadingHTTPServer, tmp_path: Path
) -> None:
    shown = resolve_in_a_new_process(hub, GATED, tmp_path, HF_TOKEN="hf_mistyped")
    assert shown == f"{GATED}: the hub refused the token (401): set HF_TOKEN to a valid one"


def test_private_model_is_refused_with_the_name_of_the_variable(
    hub: ThreadingHTTPServer, tmp_path: Path
) -> None:
    shown = resolve_in_a_new_process(hub, PRIVATE, tmp_path)
    assert shown == (
        f"{PRIVATE}: no such folder, and the hub has no such model, or has it as a private one, "
        f"which needs HF_TOKEN"
    )
    folder = Path(resolve_in_a_new_process(hub, PRIVATE, tmp_path, HF_TOKEN=TOKEN))
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "someone/gguf",
            "has GGUF files and no safetensors: download one, such as "
            "{hub}/someone/gguf/resolve/main/something-Q8_0.gguf, and name it, as in "
            "--model ./something-Q8_0.gguf",
        ),
        (
            "someone/pickled",
            "has no weights in safetensors: use a checkpoint that has them, or a GGUF file",
        ),
    ],
)
def test_repository_without_safetensors_is_refused_before_it_is_downloaded(
    hub: ThreadingHTTPServer, tmp_path: Path, model: str, message: str
) -> None:
    for _ in range(2):
        with pytest.raises(ModelError) as refused:
            weights.resolve(model, None, lambda _what, _fraction: None)
        assert refused.value.message == f"{model}: {message.format(hub=address(hub))}"
    assert not list((tmp_path / "cache").rglob("*.json"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "someone/awq",
            "its weights are quantized (awq), which is not supported; use the unquantized "
            "checkpoint in safetensors, on a CPU with --quantization int8, or a GGUF file",
        ),
        (
            "someone/t5",
            "architecture T5ForConditionalGeneration cannot run here: it has an encoder; use a "
            "model of another architecture, such as Qwen3ForCausalLM or LlamaForCausalLM",
        ),
        ("someone/weights", "config.json is missing"),
    ],
)
def test_repository_that_cannot_run_is_refused_before_its_weights_are_downloaded(
    hub: ThreadingHTTPServer, tmp_path: Path, model: str, message: str
) -> None:
    for _ in range(2):
        with pytest.raises(ModelError) as refused:
            weights.resolve(model, None, lambda _what, _fraction: None)
        assert refused.value.message == f"{model}: {message}"
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_unknown_model_is_refused(hub: ThreadingHTTPServer) -> None:
    with pytest.raises(ModelError, match="nobody/nothing: no such folder"):
        weights.resolve("nobody/nothing", None, lambda _what, _fraction: None)
