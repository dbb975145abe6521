"""What openai-node was told, held against its own types: TypeScript that compiles, or does not."""

import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.clients.conftest import NODE, Told
from tests.clients.transcripts import CHUNK, Entry

HEAD = """\
import type { RealtimeServerEvent } from 'openai/resources/realtime/realtime';
import type { ClientSecretCreateResponse } from 'openai/resources/realtime/client-secrets';
import type {
  Response, ResponsesServerEvent, ResponseStreamEvent,
} from 'openai/resources/responses/responses';
import type { ChatCompletion, ChatCompletionChunk } from 'openai/resources/chat/completions';
import type { Model } from 'openai/resources/models';

/** As it is on the wire; the SDK itself puts `output_text` in. */
type Wire<T> = T extends readonly (infer U)[] ? readonly Wire<U>[]
  : T extends object ? { [K in keyof T as K extends 'output_text' ? never : K]: Wire<T[K]> }
  : T;
declare function said<const V>(value: V): V;
declare function is<T>(value: Wire<T>): void;
const nothing = said({ type: 'session.created', event_id: 'event_1' });
// @ts-expect-error: it has no session
is<RealtimeServerEvent>(nothing);
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
"""Null passes for absent: `usage` of a response that has begun is null, as OpenAI's documentation
shows it, and those types do not know that."""
OURS = ("input_text_buffer.", "session.closed")
"""Events that the SDK does not know."""
CANCELLED, STEERED = '"reason":"cancelled"', '"reason":"steered"'
"""Clients expect the first after `response.cancel`, which the SDK does not know; it knows the other
of the kind."""
BODIES = {
    "POST /v1/realtime/client_secrets": "ClientSecretCreateResponse",
    "POST /v1/responses": "Response",
    "GET /v1/responses/": "Response",
    "POST /v1/chat/completions": "ChatCompletion",
    "GET /v1/models/": "Model",
}


def check(node: list[str], told: dict[str, Told], folder: Path) -> int:
    """How many frames were held against a type."""
    checks = _source(told)
    (folder / "frames.ts").write_text(HEAD + "".join(checks))
    (folder / "node_modules").symlink_to(NODE / "node_modules")
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS}))
    compiler = folder / "node_modules/typescript/bin/tsc"
    command = [*node, compiler, "--project", "."]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout[:5000]
    return len(checks)


def _source(told: dict[str, Told]) -> list[str]:
    checks: list[str] = []
    for flow in told.values():
        by_number: dict[int, list[Entry]] = {}
        for entry in flow["transcript"]:
            by_number.setdefault(entry[0], []).append(entry)
        for exchange in by_number.values():
            checks += _checks(exchange, len(checks))
    return checks


def _checks(exchange: list[Entry], first: int) -> Iterator[str]:
    _, side, asked = exchange[0]
    frames = [frame for _, side, frame in exchange if side == "S" and frame.startswith("{")]
    if side == "S" and "event_id" in asked:
        types = [(frame, "RealtimeServerEvent") for frame in frames]
    elif side == "S" or asked.startswith("{"):
        types = [(frame, "ResponsesServerEvent") for frame in frames]
    else:
        types = list(_bodies(asked, frames))
    known = [(frame, type) for frame, type in types if not _is_ours(frame)]
    for n, (frame, type) in enumerate(known, first):
        yield f"const s{n} = said({frame.replace(CANCELLED, STEERED)});\nis<{type}>(s{n});\n"


def _bodies(asked: str, frames: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What is answered over HTTP; errors have no type."""
    for frame in frames:
        event = json.loads(frame)
        if "type" in event:
            yield frame, "ResponseStreamEvent"
        elif event.get("object") == CHUNK:
            yield frame, "ChatCompletionChunk"
        elif "error" not in event or "object" in event:
            found = [type for path, type in BODIES.items() if asked.startswith(path)]
            yield from ((frame, type) for type in found)


def _is_ours(frame: str) -> bool:
    return json.loads(frame).get("type", "").startswith(OURS)
