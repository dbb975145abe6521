"""Start of an engine on another server: wait for the server, and check that it serves our model.

The tokenizer and the chat template are read from the checkpoint folder, whose weights are not
needed.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from continuo.engine.architectures.config import read_json
from continuo.engine.config import EngineConfig
from continuo.engine.errors import ModelError, first_line
from continuo.engine.event_loop import run_in_thread
from continuo.engine.fingerprint import compute_fingerprint
from continuo.engine.local_checkpoint import find_local_text
from continuo.engine.text import ModelText
from continuo.engine.upstream.detection import detect_server
from continuo.engine.upstream.errors import OtherModel, ServerLost, UpstreamError
from continuo.engine.upstream.http import HttpClient
from continuo.engine.upstream.model_check import ModelCheck
from continuo.engine.upstream.server import ServerLoad, ServerModel, UpstreamServer
from continuo.engine.wire.messages import EngineReady

Progress = Callable[[str, float], None]
POLL_S = 1.0
"""Seconds between two attempts to reach a server that has not started."""
FETCH_PATTERNS = ["*.json", "*.model", "*.txt", "*.jinja"]
"""Glob patterns of the files of a hub repository that are downloaded: all but its weights."""


class StartedServer(NamedTuple):
    server: UpstreamServer
    check: ModelCheck
    text: ModelText
    ready: EngineReady


async def start_server(config: EngineConfig, progress: Progress) -> StartedServer:
    """Connect to the server at `config.engine_url`, which may start later than this engine. Reports
    to `progress` what is waited for. Raises ModelError for a server that cannot be used."""
    began_s = time.monotonic()
    http = _make_client(config)
    folder = await run_in_thread("model text", _find_folder, config)
    text = await run_in_thread("model text", ModelText, str(folder))
    check = ModelCheck(http.url, text, config.max_model_len)
    while True:
        try:
            server = await detect_server(http, text)
            model, load = await server.describe(), await server.measure()
            await check.compare(server, model)
            break
        except ServerLost as error:
            progress(f"waiting for the server at {http.url}: {error}", 0.0)
            await asyncio.sleep(POLL_S)
        except OtherModel as error:
            raise ModelError(str(error)) from None
        except UpstreamError as error:
            raise ModelError(f"{http.url}: {error}") from None
    ready = _make_ready(config, folder, text, server, model, load)
    ready = msgspec.structs.replace(ready, load_s=time.monotonic() - began_s)
    return StartedServer(server, check, text, ready)


def _make_client(config: EngineConfig) -> HttpClient:
    """Make the client of the server. Raises ModelError."""
    key = None
    if config.engine_api_key_file is not None:
        try:
            key = Path(config.engine_api_key_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"engine_api_key_file: {first_line(error)}") from None
        if not key.isascii() or not key.isprintable() or not key:
            raise ModelError(f"{config.engine_api_key_file}: has no key of one line in ASCII")
    try:
        return HttpClient(config.engine_url or "", key)
    except ValueError as error:
        raise ModelError(f"engine_url: {error}") from None


def _find_folder(config: EngineConfig) -> Path:
    """Return the folder of the model's text; downloads it without weights if it is a hub id.
    Raises ModelError."""
    folder = find_local_text(config.model)
    if folder is not None:
        return folder
    # The library of the hub is slow to import.
    from huggingface_hub import (  # noqa: PLC0415
        snapshot_download,  # pyright: ignore[reportUnknownVariableType]
    )

    try:
        return Path(
            snapshot_download(config.model, revision=config.revision, allow_patterns=FETCH_PATTERNS)
        )
    except Exception as error:
        raise ModelError(f"{config.model}: download failed: {first_line(error)}") from error


def _make_ready(
    config: EngineConfig,
    folder: Path,
    text: ModelText,
    server: UpstreamServer,
    model: ServerModel,
    load: ServerLoad,
) -> EngineReady:
    values: dict[str, Any] = read_json(folder / "config.json")
    architectures: list[str] = values.get("architectures") or ["unknown"]
    return EngineReady(
        folder=str(folder),
        model=config.model,
        architecture=architectures[0],
        max_model_len=config.max_model_len or model.max_model_len,
        vocab_size=_find_vocab_size(values, text),
        pages=load.kv_tokens // server.reuse_tokens,
        page_size=server.reuse_tokens,
        device=f"{server.kind} {model.version}".rstrip(),
        dtype="its own dtype",
        load_s=0.0,
        incarnation=secrets.token_hex(8),
        digest=compute_fingerprint(str(folder)),
        enforces_lark=server.enforces_lark,
    )


def _find_vocab_size(values: dict[str, Any], text: ModelText) -> int:
    """Return the number of ids of a model, by the values of its config.json or of the part of it
    for text; else by its tokenizer."""
    nested: dict[str, Any] = values.get("text_config") or {}
    found = values.get("vocab_size") or nested.get("vocab_size")
    return max(found, text.vocab_size) if isinstance(found, int) else text.vocab_size
