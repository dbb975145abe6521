"""UpstreamServer: a server that completes token ids, and what it says about itself."""

from array import array
from collections.abc import AsyncGenerator
from typing import Literal, Protocol, TypeVar

import msgspec

from continuo.engine.sampling import Sampling
from continuo.engine.upstream.errors import UnusableReply
from continuo.engine.wire.messages import TokenLogprobs

ValueT = TypeVar("ValueT")


class ServerModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    max_model_len: int
    """Maximum tokens of one request, prompt and output."""
    vocab_size: int | None = None
    """Number of ids, as far as the server reports it; may include ids that no text has."""
    version: str = ""


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of a server at one moment. 0 where it reports nothing."""

    kv_tokens: int = 0
    """Tokens for whose KV there is memory."""
    kv_tokens_used: int = 0
    running: int = 0
    """Requests that are computed."""
    waiting: int = 0


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A request to continue `ids`."""

    session: str
    ids: "array[int]"
    """A copy: the log changes meanwhile."""
    sampling: Sampling
    """Without its limits and its seed: those below replace them."""
    max_tokens: int
    seed: int
    scope: str = ""
    """KV is shared within the scope alone, where the server can."""


class Chunk(msgspec.Struct, frozen=True):
    """A part of a completion."""

    ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    """Log-probabilities for each id; None: not requested."""
    finish: Literal["stop", "length"] | None = None
    """Why the server ends the completion here; None: more follows."""
    cached_tokens: int | None = None
    """Prompt ids whose KV was found; None: not known yet."""
    is_recalled: bool = False
    """Whether that KV was read from a file."""


class UpstreamServer(Protocol):
    """A server of one kind. Methods raise UpstreamError."""

    kind: str
    """Name of the program."""
    reuse_tokens: int
    """Cached prompts are reused in multiples of this number of tokens."""
    has_slots: bool
    """Whether each session has a slot, in which its requests are computed one after another."""

    enforces_lark: bool
    """Whether it enforces grammars of the kind `lark`."""

    @property
    def max_rows(self) -> int:
        """Requests that are computed at once, as far as known."""
        ...

    async def describe(self) -> ServerModel: ...

    async def measure(self) -> ServerLoad: ...

    async def tokenize(self, text: str) -> list[int]:
        """Tokenize text without special tokens, by the server's tokenizer."""
        ...

    def find_problem(self, sampling: Sampling) -> str | None:
        """Explain in one line why the server cannot sample so. Returns None if it can."""
        ...

    def generate(self, request: Completion) -> AsyncGenerator[Chunk]:
        """Yield the ids of a completion as they are drawn; the last chunk has a `finish`. To close
        the generator cancels the request."""
        ...

    async def prefill(self, session: str, ids: "array[int]", scope: str) -> None:
        """Compute the KV of ids, so that a completion that begins with them finds it."""
        ...

    def find_kv(self, session: str) -> Literal["device", "host", "none", "unknown"]:
        """Return where the server has the KV that was computed for a session. Returns `unknown` if
        it decides that by itself."""
        ...

    def fork(self, parent: str, child: str) -> None:
        """Record that the session `child` begins as `parent`, whose KV it may get."""
        ...

    def close(self, session: str) -> None:
        """Release what is kept for a session."""
        ...


def decode_reply(data: bytes, kind: type[ValueT]) -> ValueT:
    """Decode JSON that a server has sent. Raises UnusableReply."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableReply(f"the server's reply cannot be read: {error}") from None
