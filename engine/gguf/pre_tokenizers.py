"""Pre-tokenizers of byte-level BPE: the regexes that split a text before its bytes are merged.

Each regex splits the parts that the one before has made: a match is a part of its own, and so is
the text between two matches. Names and regexes are those of llama.cpp.
"""

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHERS_WITH_SLASH = _OTHERS.replace(r"[\r\n]*", r"[\r\n/]*", 1)
_OTHERS_WITHOUT_MARKS = _OTHERS.replace(r"\p{N}]+", r"\p{M}\p{N}]+", 1)
_WORD_START = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASED_RANGES = """
    b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c
    38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf
    1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d
    1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4
    1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f
    2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d a680-a69b a722-a76f
    a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3
    104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943
"""
"""The letters that have a case in DeepSeek's regex, besides A to Z, in hexadecimal."""
_CASED = "A-Za-z" + "".join(
    "-".join(rf"\x{{{end}}}" for end in part.split("-")) for part in _CASED_RANGES.split()
)
_CJK = r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+"
_CJK_AND_KANA = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+"
_PUNCTUATION = r"!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

REGEXES: dict[str, tuple[str, ...]] = {
    "llama-bpe": (rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}{{1,3}}|{_OTHERS}",),
    "qwen2": (rf"{_CONTRACTIONS}|{_WORD_START}\p{{L}}+|\p{{N}}|{_OTHERS}",),
    "qwen35": (rf"{_CONTRACTIONS}|{_WORD_START}[\p{{L}}\p{{M}}]+|\p{{N}}|{_OTHERS_WITHOUT_MARKS}",),
    "tekken": (
        rf"{_WORD_START}{_UPPER}*{_LOWER}+|{_WORD_START}{_UPPER}+{_LOWER}*"
        rf"|\p{{N}}|{_OTHERS_WITH_SLASH}",
    ),
    "gpt-4o": (
        rf"{_WORD_START}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
        rf"|{_WORD_START}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
        rf"|\p{{N}}{{1,3}}|{_OTHERS_WITH_SLASH}",
    ),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{_CASED}]+",
        rf"\s?[{_PUNCTUATION}]+",
        r"\s+$",
        _CJK,
        r"\p{N}+",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        _CJK_AND_KANA,
        rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
}
"""Regexes by the value of `tokenizer.ggml.pre`, in the order in which they split."""
ALIASES = {
    **dict.fromkeys(("llama-v3", "llama3", "falcon3", "falcon-h1", "pixtral", "lfm2"), "llama-bpe"),
    "deepseek-r1-qwen": "qwen2",
    "llama4": "gpt-4o",
    "phi-2": "gpt-2",
    **dict.fromkeys(("starcoder", "refact", "command-r", "codeshell"), "smollm"),
}
WHOLE_WORDS = ("llama-bpe", "tekken")
"""Pre-tokenizers of vocabularies in which a word that is a token needs no merges."""
NORMALIZED = ("qwen2", "qwen35", "command-r")
"""Pre-tokenizers, or aliases, of models that read text in Unicode's form NFC."""
