"""Build the grammar of a response that reasons before its body. Pure.

    reasoning, at most so many tokens ── end of reasoning, forced then ── body

The body follows its own grammar, of a schema or of tool calls, or is any text.
"""

import re

from continuo.engine.sampling import Grammar
from continuo.engine.text.grammar import build_json_rule
from continuo.engine.text.output_channels import ReasoningFormat
from continuo.engine.text.tool_grammar import ANY_ARGUMENTS, TokenSplit, pattern_of, terms_of

_START = re.compile(r"^start:", re.MULTILINE)
_HARMONY_BODY = "<|channel|>final<|message|>"


def build_reasoning_grammar(
    syntax: ReasoningFormat,
    body: Grammar | None,
    split: TokenSplit,
    *,
    is_open: bool,
    tokens_max: int | None,
) -> Grammar:
    """Build the grammar as uncompiled Lark source. `body` None: any text. `is_open`: the prompt has
    opened the reasoning."""
    end = split(syntax.end)[0][0]
    limit = "" if tokens_max is None else f"[max_tokens={tokens_max}]"
    begin = terms_of(syntax.begin, split)
    reasoning = f"think {terms_of(syntax.end, split)}"
    start = f"{reasoning} body" if is_open else f"({begin} {reasoning})? body"
    rules = [
        "%llguidance {}",
        f"start: {start}",
        f"think{limit}: THINK?",
        f"THINK: /(?s:.+)/ & ~/(?s:.*){pattern_of(end)}(?s:.*)/",
    ]
    if body is None:
        rules += ["whole: /(?s:.*)/"]
    elif body.kind == "lark":
        lines = body.source.replace("%llguidance {}\n", "", 1)
        rules += [_START.sub("whole:", lines, count=1)]
    else:
        rules += [f"whole: {build_json_rule(body.source or ANY_ARGUMENTS)}"]
    if syntax.is_harmony:
        opened = "" if body is not None and body.kind == "lark" else terms_of(_HARMONY_BODY, split)
        rules += [f"body: {opened} whole"]
    else:
        rules += [r"body: /\n{0,2}/ whole"]
    return Grammar("lark", "\n".join(rules))
