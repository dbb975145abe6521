"""Training of the tokenizer: byte-level BPE that splits a word in the same way whether a space is
before it or not.

BPE learns words without the space before them; afterwards frequent words that are one token get a
second token, the twin, which includes the space. An unknown word therefore has the same tokens
wherever it occurs, which makes it easy to repeat. Each digit, each space before a capital letter,
and each role is a token of its own.
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
    """Yield the texts of `count` training conversations, without control tokens and tags."""
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
    """Learn the vocabulary and the merges of words without the spaces before them."""
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
    """Return the TWINS most frequent words that follow a space and are one token without it."""
    cut = _cut(_WITH_SPACE)
    counts: Counter[str] = Counter()
    for text in corpus:
        counts.update(piece for piece, _ in cut.pre_tokenize_str(text))
    frequent = (piece[1:] for piece, _ in counts.most_common() if piece[0] == _SPACE)
    return [piece for piece in frequent if piece in vocabulary][:TWINS]


def build(conversations: int) -> PreTrainedTokenizerFast:
    """Train the whole tokenizer on `conversations` training conversations."""
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
    """Parse the command line, train the tokenizer and save it."""
    parser = argparse.ArgumentParser(description="Train the tokenizer and save it to a folder.")
    parser.add_argument("--out", type=Path, required=True, help="folder to save to")
    parser.add_argument("--conversations", type=int, default=8000, help="to learn from")
    options = parser.parse_args(arguments)
    build(options.conversations).save_pretrained(options.out)
    print(f"saved to {options.out}")


if __name__ == "__main__":
    main()
