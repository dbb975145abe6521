"""The output of a model of each family that reasons: a thought, and the answer after it."""

THOUGHT, ANSWER = "Rome is warm.\nSo yes.", "It is sunny."
_FORMS = {
    "qwen3": "<think>\n{thought}\n</think>\n\n{answer}",
    "qwen3_0_6b": "<think>\n{thought}\n</think>\n\n{answer}",
    "qwen3_5": "{thought}\n</think>\n\n{answer}",
    "glm4_7": "{thought}</think>{answer}",
    "minimax_m2": "{thought}\n</think>\n\n{answer}",
    "deepseek_r1": "{thought}\n</think>\n\n{answer}",
    "deepseek_v3": "{thought}\n</think>\n\n{answer}",
    "deepseek_v3_1": "<think>{thought}</think>{answer}",
    "deepseek_v3_2": "{thought}</think>{answer}",
    "kimi_k2_thinking": "<think>{thought}</think>{answer}",
    "ministral3_reasoning": "[THINK]{thought}[/THINK]{answer}",
    "apertus": "<|inner_prefix|>{thought}<|inner_suffix|>{answer}",
    "seed_oss": "<seed:think>{thought}</seed:think>{answer}",
    "lfm2_5": "<think>{thought}</think>{answer}",
    "nemotron_nano_v2": "{thought}\n</think>\n\n{answer}",
    "gemma4": "<|channel>thought\n{thought}<channel|>{answer}",
    "gpt_oss": "<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant"
    "<|channel|>final<|message|>{answer}",
}
"""By family, as its chat template begins the output."""
REASONING_FAMILIES = tuple(_FORMS)
PROMPT_OPENS = tuple(name for name, form in _FORMS.items() if form.startswith("{thought}"))
"""The families whose templates open the reasoning in the prompt."""


def reasoning_output(name: str, thought: str = THOUGHT, answer: str = ANSWER) -> str:
    """Return the output of a model of the family `name`."""
    return _FORMS[name].format(thought=thought, answer=answer)


def markup_around(name: str) -> tuple[str, str]:
    """Return the text before and the text after the thought of a family."""
    before, _, rest = _FORMS[name].partition("{thought}")
    return before, rest.removesuffix("{answer}")


OUTPUTS = {name: reasoning_output(name) for name in REASONING_FAMILIES}
