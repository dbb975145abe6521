"""Chat completions, whole and in chunks. Each type validates against the OpenAI SDK's own."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from continuo.realtime.protocol.token_logprobs import EncodedLogprobs

FinishReason = Literal["stop", "length", "tool_calls"]


class FunctionCallOut(msgspec.Struct, frozen=True, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class ToolCallOut(msgspec.Struct, frozen=True, kw_only=True):
    """Tool call. In chunks, `index` is the number of the call; the chunks of a call after the first
    contain only the next part of `arguments`."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionCallOut


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int


class UsageOut(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET
    """Absent if the model has not reasoned."""


class LogprobsOut(msgspec.Struct, frozen=True, kw_only=True):
    content: EncodedLogprobs
    refusal: None = None


class MessageOut(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    """Extension, as in vLLM: what the model reasoned before its answer."""
    refusal: None = None
    tool_calls: list[ToolCallOut] | UnsetType = UNSET


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    message: MessageOut
    logprobs: LogprobsOut | None = None
    finish_reason: FinishReason


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: UsageOut


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallOut] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: Delta
    logprobs: LogprobsOut | None = None
    finish_reason: FinishReason | None = None


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Chunk of a completion. `usage` is absent unless requested; then it is null in all chunks but
    the last."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageOut | UnsetType | None = UNSET


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: Literal["server_error"] = "server_error"
    param: None = None
    code: str


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """Error event, sent in place of a chunk if the response fails."""

    error: ErrorBody
