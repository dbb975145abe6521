"""Detection of the program behind a URL, by what it answers."""

import msgspec

from continuo.engine.errors import ModelError
from continuo.engine.text import ModelText
from continuo.engine.upstream.errors import RequestRefused, UnusableReply
from continuo.engine.upstream.http import HttpClient
from continuo.engine.upstream.llama_server import LlamaServer
from continuo.engine.upstream.lost_ids import LostIds
from continuo.engine.upstream.server import UpstreamServer, decode_reply
from continuo.engine.upstream.vllm import VllmServer


class _Model(msgspec.Struct):
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]


async def detect_server(http: HttpClient, text: ModelText) -> UpstreamServer:
    """Return the server at the URL of `http`: vLLM, also behind a router that changes the owner of
    its models, or llama-server. `text`: that of its model. Raises ModelError for any other, and for
    one that refuses to be asked, and ServerLost while it cannot be reached or loads its model."""
    try:
        models = decode_reply(await http.fetch("GET", "/v1/models"), _Models).data
    except (RequestRefused, UnusableReply) as error:
        raise ModelError(f"{http.url}/v1/models: {error}") from None
    owner = models[0].owned_by if models else ""
    if owner == "llamacpp" or (owner != "vllm" and await _answers(http, "/props")):
        return LlamaServer(http, LostIds(text.token_bytes.of, text.vocab_size))
    if owner == "vllm" or await _answers(http, "/version"):
        return VllmServer(http)
    raise ModelError(
        f"{http.url} is neither vLLM nor llama-server: its models are owned by {owner!r}"
    )


async def _answers(http: HttpClient, path: str) -> bool:
    try:
        await http.fetch("GET", path)
    except RequestRefused:
        return False
    return True
