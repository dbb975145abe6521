"""Check frames that openai-node received against its own types by compiling TypeScript."""

import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.clients.conftest import NODE, FlowResult
from tests.clients.transcripts import CHUNK, Entry

HEAD = """\
import type { RealtimeServerEvent } from 'openai/resources/realtime/realtime';
import type { ClientSecretCreateResponse } from 'openai/resources/realtime/client-secrets';
import type {
  Response, ResponsesServerEvent, ResponseStreamEvent,
} from 'openai/resources/responses/responses';
import type { ChatCompletion, ChatCompletionChunk } from 'openai/resources/chat/completions';
import type { Model } from 'openai/resources/models';

/** The type on the wire; the SDK itself adds `output_text`. */
type Wire<T> = T extends readonly (infer U)[] ? readonly Wire<U>[]
  : T extends object ? { [K in keyof T as K extends 'output_text' ? never : K]: Wire<T[K]> }
  : T;
declare function frame<const V>(value: V): V;
declare function is<T>(value: Wire<T>): void;
const incomplete = frame({ type: 'session.created', event_id: 'event_1' });
// @ts-expect-error: the event has no session
is<RealtimeServerEvent>(incomplete);
"""
OPTIONS = {
    "module": "preserve",
    "moduleResolution": "bundler",
    "noEmit": True,
    "preserveSymlinks": True,
    "skipLibCheck": True,
    "strict": True,
    "strictNullChecks": False,
    "target": "es2022",
    "types": [],
}
"""Null counts as absent, because OpenAI documents `usage` of a response in progress as null, which
the types of the SDK do not allow."""
EXTENSIONS = ("input_text_buffer.", "session.closed")
"""Extension events, unknown to the SDK."""
CANCELLED, STEERED = '"reason":"cancelled"', '"reason":"steered"'
"""Clients expect the first reason after `response.cancel`; the SDK knows only the second."""
BODIES = {
    "POST /v1/realtime/client_secrets": "ClientSecretCreateResponse",
    "POST /v1/responses": "Response",
    "GET /v1/responses/": "Response",
    "POST /v1/chat/completions": "ChatCompletion",
    "GET /v1/models/": "Model",
}


def check(node: list[str], results: dict[str, FlowResult], folder: Path) -> int:
    """Compile all frames against their types. Returns the number of frames."""
    checks = _source(results)
    (folder / "frames.ts").write_text(HEAD + "".join(checks))
    (folder / "node_modules").symlink_to(NODE / "node_modules")
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS}))
    compiler = folder / "node_modules/typescript/bin/tsc"
    command = [*node, compiler, "--project", "."]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout[:5000]
    return len(checks)


def _source(results: dict[str, FlowResult]) -> list[str]:
    checks: list[str] = []
    for flow in results.values():
        by_number: dict[int, list[Entry]] = {}
        for entry in flow["transcript"]:
            by_number.setdefault(entry[0], []).append(entry)
        for exchange in by_number.values():
            checks += _checks(exchange, len(checks))
    return checks


def _checks(exchange: list[Entry], first: int) -> Iterator[str]:
    _, side, start = exchange[0]
    frames = [frame for _, side, frame in exchange if side == "S" and frame.startswith("{")]
    if side == "S" and "event_id" in start:
        types = [(frame, "RealtimeServerEvent") for frame in frames]
    elif side == "S" or start.startswith("{"):
        types = [(frame, "ResponsesServerEvent") for frame in frames]
    else:
        types = list(_bodies(start, frames))
    known = [(frame, type) for frame, type in types if not _is_extension(frame)]
    for n, (frame, type) in enumerate(known, first):
        yield f"const s{n} = frame({frame.replace(CANCELLED, STEERED)});\nis<{type}>(s{n});\n"


def _bodies(request_line: str, frames: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield response bodies over HTTP with their types; errors have no type."""
    for frame in frames:
        event = json.loads(frame)
        if "type" in event:
            yield frame, "ResponseStreamEvent"
        elif event.get("object") == CHUNK:
            yield frame, "ChatCompletionChunk"
        elif "error" not in event or "object" in event:
            found = [type for path, type in BODIES.items() if request_line.startswith(path)]
            yield from ((frame, type) for type in found)


def _is_extension(frame: str) -> bool:
    return json.loads(frame).get("type", "").startswith(EXTENSIONS)
