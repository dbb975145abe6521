"""Trains the tokenizer: byte-level BPE in which a word is cut alike with and without its space.

Words are learnt without their space; only then do frequent whole words get a twin that carries it.
An unheard-of word therefore has the same tokens wherever it stands, which is what makes repeating
it easy. Digits stand alone, as do the spaces before capitals; a role is one token.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tools.demo_model.generate import converse, mixed_plan
from tools.demo_model.template import CHAT_TEMPLATE, CONTROL, END, MARKS, PAD, render

WORDS = 1400
TWINS = 520
_SPACE = "Ġ"
_ALONE = r"\d|\p{Lu}?\p{Ll}+|\p{L}|\s|[^\s\p{L}\p{N}]+"
_WITH_SPACE = r"\d| ?\p{Ll}+|\p{Lu}\p{Ll}*|\p{L}|\s| ?[^\s\p{L}\p{N}]+"


def texts(count: int) -> Iterator[str]:
    """Stretches of training conversations, without roles."""
    for seed in range(count):
        rng = random.Random(f"tokenizer {seed}")
        conversation = converse(rng, mixed_plan(rng))
        for segment in render(conversation.messages, conversation.tools):
            if segment.text not in CONTROL:
                text = segment.text.removesuffix(END)
                for mark in MARKS:
                    text = text.replace(mark, "")
                yield text


def _cut(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _learn(corpus: Sequence[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of words without their spaces."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _cut(_ALONE)
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=[*CONTROL, *MARKS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(corpus, trainer)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


def _twins(corpus: Sequence[str], vocabulary: dict[str, int]) -> list[str]:
    """The most frequent pieces that follow a space and are one token."""
    cut = _cut(_WITH_SPACE)
    counts: Counter[str] = Counter()
    for text in corpus:
        counts.update(piece for piece, _ in cut.pre_tokenize_str(text))
    frequent = (piece[1:] for piece, _ in counts.most_common() if piece[0] == _SPACE)
    return [piece for piece in frequent if piece in vocabulary][:TWINS]


def build(conversations: int) -> PreTrainedTokenizerFast:
    """The whole tokenizer, learnt from that many training conversations."""
    corpus = list(texts(conversations))
    vocabulary, merges = _learn(corpus)
    for piece in _twins(corpus, vocabulary):
        vocabulary[_SPACE + piece] = len(vocabulary)
        merges.append((_SPACE, piece))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _cut(_WITH_SPACE)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL])
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description="Train the tokenizer and save it to a folder.")
    parser.add_argument("--out", type=Path, required=True, help="folder to save to")
    parser.add_argument("--conversations", type=int, default=8000, help="to learn from")
    options = parser.parse_args(arguments)
    build(options.conversations).save_pretrained(options.out)
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()
