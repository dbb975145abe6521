"""Prompt: the token ids from which a response is generated, and its sampling parameters."""

import secrets
from collections.abc import Set

import msgspec

from continuo.engine import EngineReady, Grammar, Sampling
from continuo.realtime.conversation.conversation import Conversation
from continuo.realtime.errors import context_length_exceeded
from continuo.realtime.generation.output_grammar import build_grammar
from continuo.realtime.protocol.settings import GenerationSettings
from continuo.realtime.protocol.validation import invalid_parameter, unsupported_value


class Prompt(msgspec.Struct, frozen=True):
    conversation: Conversation
    header: list[int]
    sampling: Sampling

    @property
    def length(self) -> int:
        return self.conversation.length + len(self.header)


def build_prompt(
    conversation: Conversation,
    settings: GenerationSettings,
    enforced_tools: Set[str],
    ready: EngineReady,
    param: str,
) -> Prompt:
    """Build the prompt of a response. `enforced_tools`: as in `build_grammar`. `max_output_tokens`
    is reduced to what the context has room for. Raises Refusal if not even one token of output
    fits."""
    check_logit_bias(settings.sampling, ready)
    conversation, header = conversation.render_header()
    room = _response_tokens_max(conversation.length + len(header), ready, param)
    tokens = settings.max_output_tokens
    template = conversation.template
    starts_in_reasoning = template.opens_reasoning(header)
    grammar = build_grammar(
        settings, template, enforced_tools, starts_in_reasoning=starts_in_reasoning
    )
    _check_grammar(grammar, ready)
    sampling = msgspec.structs.replace(
        settings.sampling,
        max_tokens=room if tokens is None else min(tokens, room),
        stop_ids=tuple(id for id in template.stop_ids if id < ready.vocab_size),
        grammar=grammar,
        starts_in_reasoning=starts_in_reasoning,
        seed=secrets.randbits(63) if settings.sampling.seed is None else settings.sampling.seed,
    )
    return Prompt(conversation, header, sampling)


def _check_grammar(grammar: Grammar | None, ready: EngineReady) -> None:
    """Raise Refusal for a grammar that the engine does not enforce: forced calls and bounds on
    reasoning need one that is not a JSON schema."""
    if grammar is not None and grammar.kind == "lark" and not ready.enforces_lark:
        raise unsupported_value(
            "tool_choice",
            f"{ready.device} enforces JSON schemas alone; leave out strict functions, forced calls,"
            " 'parallel_tool_calls': false and bounds on reasoning",
        )


def check_logit_bias(sampling: Sampling, ready: EngineReady) -> None:
    """Raise Refusal if a key of `logit_bias` is no token id of the model."""
    for id in sampling.logit_bias:
        if not 0 <= id < ready.vocab_size:
            raise invalid_parameter(
                "logit_bias", f"{id} is no token id; the model has 0 to {ready.vocab_size - 1:,}."
            )


def build_warm_up_prompt(conversation: Conversation, ready: EngineReady, param: str) -> Prompt:
    """Build the prompt of `generate: false`, which prefills the conversation: one token is sampled
    and discarded. The prompt has no header, because no response follows yet, and may be empty.
    Raises Refusal if that token does not fit."""
    _response_tokens_max(conversation.length, ready, param)
    return Prompt(conversation, [], Sampling(max_tokens=1))


def _response_tokens_max(length: int, ready: EngineReady, param: str) -> int:
    """Return how many tokens fit after a prompt of `length` tokens. Raises Refusal if none does."""
    limit = ready.max_model_len
    if length >= limit:
        raise context_length_exceeded(
            limit,
            f"The prompt of this response is {length:,} tokens, and one token must be left for the "
            "output.",
            param,
        )
    return limit - length
