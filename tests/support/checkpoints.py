"""Small tokenizers like those of well-known model families, and checkpoint folders with them."""

import atexit
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from continuo import engine
from continuo.engine.config import BUNDLED_MODEL
from continuo.engine.text import ChatTemplate, ModelText

CORPUS = [
    "Hello, world! This is a test of things: numbers 12345 and words, words, words.\n\n",
    "The user asks the assistant; the system says   nothing.\n\tIt's a tool_call, isn't it?\n",
    '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_response>\n<tool_response>\n',
    "Grüße aus Köln, où est la bibliothèque? Привет мир. 你好世界 こんにちは 😀😃 👩‍👧\n",
    "עברית العربية\n",
] * 5

BYTE_ALPHABET = pre_tokenizers.ByteLevel.alphabet()
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level_tokenizer(special: Sequence[str], ordinary: Sequence[str] = ()) -> Tokenizer:
    """Train a small byte-level BPE tokenizer like those of GPT-2, Qwen and Llama 3.

    `special` and `ordinary`: special and other tokens to add to the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=500, initial_alphabet=BYTE_ALPHABET, show_progress=False),
    )
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ordinary])
    return tokenizer


def sentencepiece_tokenizer(special: Sequence[str], *, legacy: bool = True) -> Tokenizer:
    """Train a small BPE tokenizer like those of Llama 2 and Mistral, with spaces as ▁ and unknown
    characters as bytes.

    `legacy` puts a ▁ before each stretch of text between special tokens, otherwise only before the
    first. `special`: special tokens to add to the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>"],
        show_progress=False,
        limit_alphabet=60,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    state = json.loads(tokenizer.to_str())
    vocab: dict[str, int] = state["model"]["vocab"]
    for byte in range(256):
        vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    state["model"]["byte_fallback"] = True
    state["model"]["fuse_unk"] = True
    state["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    if legacy:
        state["normalizer"] = {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        }
    else:
        state["normalizer"] = None
        state["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": "first",
            "split": False,
        }
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    return tokenizer


def write_checkpoint(
    folder: Path, tokenizer: Tokenizer, template: str | None = None, **config: Any
) -> Path:
    """Write the tokenizer and the chat template of a checkpoint into `folder`. Returns `folder`.

    `template`: chat template; `config`: fields of tokenizer_config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


CHATML_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_TAG_TOKENS = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
MISTRAL_TOKENS = [
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
]
MISTRAL_ARGS_TOKENS = ["[ARGS]", "[CALL_ID]"]
LLAMA3_TOKENS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]

FAMILIES: dict[str, tuple[Callable[[], Tokenizer], dict[str, str]]] = {
    "chatml": (lambda: byte_level_tokenizer(CHATML_TOKENS), {"eos_token": "<|im_end|>"}),
    "qwen2_5": (
        lambda: byte_level_tokenizer(CHATML_TOKENS, QWEN_TAG_TOKENS[:2]),
        {"eos_token": "<|im_end|>"},
    ),
    "qwen3": (
        lambda: byte_level_tokenizer(CHATML_TOKENS, QWEN_TAG_TOKENS),
        {"eos_token": "<|im_end|>"},
    ),
    "llama3": (
        lambda: byte_level_tokenizer([*LLAMA3_TOKENS, "<|python_tag|>"]),
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ),
    "mistral_v3": (
        lambda: sentencepiece_tokenizer(MISTRAL_TOKENS, legacy=False),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    "mistral_small": (
        lambda: byte_level_tokenizer(["<s>", "</s>", *MISTRAL_TOKENS]),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    "mistral_args": (
        lambda: byte_level_tokenizer(["<s>", "</s>", *MISTRAL_TOKENS, *MISTRAL_ARGS_TOKENS]),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    "llama2": (lambda: sentencepiece_tokenizer([]), {"bos_token": "<s>", "eos_token": "</s>"}),
    "gemma": (
        lambda: sentencepiece_tokenizer(["<start_of_turn>", "<end_of_turn>"], legacy=False),
        {"bos_token": "<s>", "eos_token": "<end_of_turn>"},
    ),
    "numbered": (
        lambda: byte_level_tokenizer(["<s>", "</s>"]),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
    "odd_calls": (lambda: byte_level_tokenizer(CHATML_TOKENS), {"eos_token": "<|im_end|>"}),
    "counting": (
        lambda: byte_level_tokenizer(["<s>", "</s>"]),
        {"bos_token": "<s>", "eos_token": "</s>"},
    ),
}
"""Model families by name: the maker of the tokenizer, and the fields of tokenizer_config.json. The
chat template of each is `templates/<name>.jinja`."""


def _tokens_in(name: str, *more: str) -> Callable[[], Tokenizer]:
    """Make a tokenizer whose special tokens are those that look like tokens in a template."""

    def make() -> Tokenizer:
        source = _find_template(name).read_text("utf-8")
        found = re.findall(r"<[|\uff5c][^|\uff5c<>\s]*[|\uff5c]>|<\|\"\|>|\[[A-Z_]{4,}\]", source)
        return byte_level_tokenizer([*dict.fromkeys([*found, *more])], PUBLISHED[name][2])

    return make


_BEGIN_OF_SENTENCE = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
_END_OF_SENTENCE = "<\uff5cend\u2581of\u2581sentence\uff5c>"
THINK = ["<think>", "</think>"]
_DEEPSEEK = (
    [_BEGIN_OF_SENTENCE, _END_OF_SENTENCE],
    {"bos_token": _BEGIN_OF_SENTENCE, "eos_token": _END_OF_SENTENCE},
)
_GLM4_TOKENS = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
_MISTRAL: tuple[dict[str, str], list[str]] = ({"bos_token": "<s>", "eos_token": "</s>"}, [])
PUBLISHED: dict[str, tuple[Sequence[str], dict[str, str], Sequence[str]]] = {
    "apertus": (["<s>"], {"bos_token": "<s>", "eos_token": "<|assistant_end|>"}, []),
    "deepseek_r1": (*_DEEPSEEK, THINK),
    "deepseek_v3": (*_DEEPSEEK, THINK),
    "deepseek_v3_1": (*_DEEPSEEK, THINK),
    "deepseek_v3_2": (*_DEEPSEEK, THINK),
    "devstral": (["<s>", "</s>", "[ARGS]", "[CALL_ID]"], *_MISTRAL),
    "gemma4": (
        [
            *("<bos>", "<turn|>", "<|turn>", "<|channel>", "<channel|>", "<|think|>", "<|tool>"),
            *("<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
        ],
        {"bos_token": "<bos>", "eos_token": "<turn|>"},
        [],
    ),
    "glm4_5": (["[gMASK]", "<sop>"], {"eos_token": "<|user|>"}, [*QWEN_TAG_TOKENS, "<arg_key>"]),
    "glm4_6": (["[gMASK]", "<sop>"], {"eos_token": "<|user|>"}, [*QWEN_TAG_TOKENS, "<arg_key>"]),
    "glm4_7": (["[gMASK]", "<sop>"], {"eos_token": "<|user|>"}, [*QWEN_TAG_TOKENS, "<arg_key>"]),
    "gpt_oss": (["<|return|>", "<|call|>"], {"eos_token": "<|return|>"}, []),
    "granite3_3": ([], {"eos_token": "<|end_of_text|>"}, []),
    "granite4": ([], {"eos_token": "<|end_of_text|>"}, QWEN_TAG_TOKENS),
    "kimi_k2": ([], {"eos_token": "<|im_end|>"}, []),
    "kimi_k2_thinking": ([], {"eos_token": "<|im_end|>"}, THINK),
    "minimax_m2": (
        ["]~!b[", "]~b]", "[e~["],
        {"eos_token": "[e~["},
        ["<minimax:tool_call>", "</minimax:tool_call>", *THINK],
    ),
    "ministral3_reasoning": (["<s>", "</s>", "[/THINK]", "[CALL_ID]"], *_MISTRAL),
    "mistral_nemo": (["<s>", "</s>"], *_MISTRAL),
    "mistral_small_3_2": (["<s>", "</s>"], *_MISTRAL),
    "qwen3_0_6b": ([], {"eos_token": "<|im_end|>"}, QWEN_TAG_TOKENS),
    "qwen3_5": ([], {"eos_token": "<|im_end|>"}, QWEN_TAG_TOKENS),
    "qwen3_coder": ([], {"eos_token": "<|im_end|>"}, QWEN_TAG_TOKENS),
    "seed_oss": (
        ["<seed:bos>", "<seed:eos>"],
        {"bos_token": "<seed:bos>", "eos_token": "<seed:eos>"},
        ["<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"],
    ),
    "smollm3": ([], {"eos_token": "<|im_end|>"}, THINK),
    "lfm2": (["<|tool_call_start|>", "<|tool_call_end|>"], {"eos_token": "<|im_end|>"}, []),
    "lfm2_5": ([], {"eos_token": "<|im_end|>"}, THINK),
    "nemotron_nano_v2": (
        ["<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"],
        {"eos_token": "<SPECIAL_12>"},
        THINK,
    ),
    "phi4_mini": (
        ["<|endoftext|>", "<|tool_call|>", "<|/tool_call|>"],
        {"eos_token": "<|endoftext|>"},
        [],
    ),
    "glm4_9b": (_GLM4_TOKENS, {"eos_token": "<|user|>"}, []),
    "glm4_0414": (_GLM4_TOKENS, {"eos_token": "<|user|>"}, []),
    "command_r7b": (
        ["<BOS_TOKEN>"],
        {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"},
        [],
    ),
    "minicpm5": (["<s>"], {"bos_token": "<s>", "eos_token": "<|im_end|>"}, THINK),
    "reka_edge": (["<sep>"], {"eos_token": "<sep>"}, QWEN_TAG_TOKENS),
    "llama3_2_pythonic": (
        ["<|begin_of_text|>", "<|python_tag|>"],
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        [],
    ),
    "llama4_pythonic": (
        ["<|begin_of_text|>", "<|python_start|>", "<|python_end|>"],
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot|>"},
        [],
    ),
}
"""Model families with their published chat templates (`templates/published`), or with templates of
their shape: special tokens beside those that the template shows, fields of tokenizer_config.json,
and other added tokens."""
FAMILIES |= {
    name: (_tokens_in(name, *tokens), config) for name, (tokens, config, _) in PUBLISHED.items()
}
TRANSCRIBED = tuple(name for name in FAMILIES if name not in PUBLISHED)
"""The families whose templates are of our own."""
FAMILY_NAMES = (*TRANSCRIBED, BUNDLED_MODEL)


def _find_template(name: str) -> Path:
    folder = Path(__file__).parent / "templates"
    published = folder / "published" / f"{name}.jinja"
    return published if published.exists() else folder / f"{name}.jinja"


@cache
def family_folder(name: str) -> Path:
    """Return the checkpoint folder of a family of FAMILIES or of the bundled model.

    The folder of a family is temporary: it is written on the first call and deleted at exit.
    """
    if name == BUNDLED_MODEL:
        return Path(engine.__file__).parent / "bundled" / BUNDLED_MODEL
    folder = Path(tempfile.mkdtemp(prefix="continuo-text-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer, config = FAMILIES[name]
    template = _find_template(name).read_text("utf-8")
    return write_checkpoint(folder, tokenizer(), template, **config)


@cache
def family_text(name: str) -> ModelText:
    return ModelText(str(family_folder(name)))


def family_template(name: str) -> ChatTemplate:
    template = family_text(name).template
    assert template is not None
    return template
