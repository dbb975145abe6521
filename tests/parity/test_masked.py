"""Parity of a greedy turn under a grammar, through the whole engine, with the masked argmax of
transformers' logits, id by id.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as tf

from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.device.weights import resolve
from continuo.engine.sampling import Grammar, Sampling
from continuo.engine.text import ModelText
from tests.support import transformers_oracle as oracle
from tests.support.engine_sessions import collect_ids
from tests.support.engines import running_engine

CITY = (
    '{"type": "object", "properties": {"city": {"type": "string", "maxLength": 12},'
    ' "days": {"type": "array", "items": {"enum": ["mon", "tue"]}, "maxItems": 3}},'
    ' "required": ["city", "days"], "additionalProperties": false}'
)
COUNT = 48


@pytest.mark.parametrize(
    "grammar", [Grammar("json_schema", CITY), Grammar("lark", 'start: /[A-Z][a-z ]{9,}/ "!"')]
)
async def test_greedy_turn_under_a_grammar_is_the_masked_argmax(grammar: Grammar) -> None:
    folder = resolve(BUNDLED_MODEL, None, lambda what, fraction: None)
    reference = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text, vocab = ModelText(str(folder)), reference.config.vocab_size
    ids = text.encode("<|user|>Where do you live?<|end|><|assistant|>")
    matcher = text.create_grammar_compiler(vocab, lambda: None).create_matcher(
        grammar, text.stop_ids
    )
    expected: list[int] = []
    while len(expected) < COUNT and not set(expected[-1:]) & set(text.stop_ids):
        packed = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = torch.from_numpy(np.unpackbits(packed, bitorder="little")[:vocab]).bool()
        logits = oracle.full_logits(reference, ids + expected)[-1].masked_fill(~allowed, -torch.inf)
        expected.append(int(logits.argmax()))
        matcher.accept(expected[-1])

    async with running_engine(
        folder, lambda: oracle.build_cpu_runner(folder, max_model_len=512)
    ) as harness:
        session = await harness.engine.open()
        await harness.engine.append(session, ids)
        sampling = Sampling(max_tokens=COUNT, stop_ids=text.stop_ids, grammar=grammar)
        assert await collect_ids(await harness.engine.generate(session, sampling)) == expected
