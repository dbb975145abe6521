"""Parameters of a turn, declared once: name, type, bounds and default.

The link checks the bounds when it decodes a command. The gateway derives the fields of its requests
and responses from SamplingSettings. A new parameter needs a field there, its effect (its formula in
`device/sampling`, or its use in `core/schedule`), and a row in docs/protocol.md. Knows no session
and no torch.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

StopString = Annotated[str, Meta(min_length=1, max_length=256)]


class Grammar(msgspec.Struct, frozen=True):
    """Constraint on the output of a turn. `json`: any JSON object; `json_schema`: an instance of
    the JSON schema in `source`; `lark`: a match of the grammar in `source`, in llguidance's
    Lark."""

    kind: Literal["json", "json_schema", "lark"]
    source: str = ""


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters that a request may set, with vLLM's names and ranges; and how its turn is
    scheduled."""

    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Number of likeliest ids to sample from; 0: all ids."""
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """Seed of the random numbers; None: the engine chooses one. TurnEnded reports it."""
    stop: Annotated[tuple[StopString, ...], Meta(max_length=16)] = ()
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] = 1.0
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] = 0.0
    ignore_eos: bool = False
    """Ignore `stop_ids` and `stop`; generate up to `max_tokens`."""
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    """Order among the waiting turns of a tenant: a lower number is served first."""
    deadline_ms: Annotated[int, Meta(ge=1, le=600_000)] | None = None
    """Time from the request to the first id: other turns overtake this one only as long as it can
    still be met. A turn that is late continues. None: no deadline."""


class Sampling(SamplingSettings, frozen=True, kw_only=True):
    """Sampling parameters and stop conditions of a turn."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    """Maximum number of output tokens; None: limited only by the capacity of the session."""
    logit_bias: Annotated[
        dict[int, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1024)
    ] = {}
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """Number of likeliest ids whose log-probabilities are reported, besides that of the drawn id,
    all computed before mask and temperature; None: none are reported."""
    stop_ids: Annotated[tuple[int, ...], Meta(max_length=1024)] = ()
    """At most more ids than any tokenizer has special tokens that end a response."""
    grammar: Grammar | None = None
    """Constraint on the output, or None. Requires `stop_ids`, because only a stop id may follow a
    complete match."""
    starts_in_reasoning: bool = False
    """Whether the prompt has opened the model's reasoning, so that the output begins within it.
    Stop strings are not searched there."""
