"""Requests of SGLang's native API. Keys that are not listed are ignored; null counts as absent.

A field of type `object` asks for what this server does not do: a value other than null, false or an
empty one is refused by name.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from continuo.realtime import limits
from continuo.realtime.protocol.sampling import BoundedText, ItemId, LogitBias, TopLogprobs
from continuo.realtime.protocol.validation import decode_json

T = TypeVar("T")
Batch = Annotated[list[T], Meta(min_length=1, max_length=limits.PROMPTS_MAX)]
StopText = Annotated[str, Meta(min_length=1, max_length=256)]


class OpenSession(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/open_session`. `capacity_of_str_len` has no effect, as in SGLang."""

    capacity_of_str_len: int | None = None
    session_id: ItemId | None = None
    streaming: bool | None = None
    timeout: Annotated[float, Meta(gt=0, le=limits.TOKEN_SESSION_TIMEOUT_S_MAX)] | None = None
    """Idle time in seconds after which the session is closed."""


class CloseSession(msgspec.Struct, frozen=True, kw_only=True):
    session_id: ItemId


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/abort_request`. An empty `rid` is the id of no turn."""

    rid: Annotated[str, Meta(max_length=128)] | None = None
    abort_all: bool | None = None


class SessionParams(msgspec.Struct, frozen=True, kw_only=True):
    id: ItemId
    rid: ItemId | None = None
    """Id of the finished turn to continue from, in a regular session."""
    offset: Annotated[int, Meta(ge=-(2**31), le=2**31)] | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters. `skip_special_tokens` and its kind are ignored: `output_ids` has all."""

    max_new_tokens: Annotated[int, Meta(ge=0, le=limits.OUTPUT_TOKENS_MAX)] | None = None
    """0: the prompt is computed, and nothing is generated."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_073_741_824)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=64)] | None = None
    ignore_eos: bool | None = None
    sampling_seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    logit_bias: LogitBias | None = None
    json_schema: BoundedText | None = None
    regex: BoundedText | None = None
    n: Annotated[int, Meta(ge=1, le=limits.PROMPTS_MAX)] | None = None
    ebnf: object = None
    structural_tag: object = None
    min_new_tokens: object = None
    stop_regex: object = None


class Generate(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/generate`. Either `text` or `input_ids` is required. A list of texts, or of lists
    of ids, is a batch: each prompt is a turn of its own. In a batch, a list gives each prompt its
    own sampling parameters, id and log-probabilities."""

    text: BoundedText | Batch[BoundedText] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SamplingParams | Batch[SamplingParams] | None = None
    session_params: SessionParams | None = None
    rid: ItemId | Batch[ItemId] | None = None
    stream: bool | None = None
    return_logprob: bool | Batch[bool] | None = None
    logprob_start_len: int | Batch[int] | None = None
    """Only -1: log-probabilities are reported for the output alone."""
    top_logprobs_num: TopLogprobs | Batch[TopLogprobs] | None = None
    token_ids_logprob: object = None
    return_text_in_logprobs: object = None
    return_hidden_states: object = None
    input_embeds: object = None
    image_data: object = None
    audio_data: object = None
    video_data: object = None
    lora_path: object = None
    custom_logit_processor: object = None


def decode_body(body: bytes, kind: type[T]) -> T:
    """Decode the body of a request. Raises BadFrame."""
    return decode_json(msgspec.json.Decoder(kind), body, "body")
