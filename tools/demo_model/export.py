"""Export of a checkpoint as a folder that transformers loads: bf16 weights, config, tokenizer."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tools.demo_model.model import CONFIG
from tools.demo_model.template import CHAT_TEMPLATE, CONTROL


def export(checkpoint: Path, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Write the model folder `out` from the file `checkpoint` of the training and a tokenizer."""
    out.mkdir(parents=True, exist_ok=True)
    weights = torch.load(checkpoint, map_location="cpu")
    named = {f"model.{name}": weight.bfloat16() for name, weight in weights.items()}
    save_file(named, out / "model.safetensors", metadata={"format": "pt"})
    end = tokenizer.eos_token_id
    ids = {"eos_token_id": end, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    vocabulary = named["model.embed_tokens.weight"].shape[0]
    config = {**CONFIG, **ids, "vocab_size": vocabulary, "dtype": "bfloat16"}
    (out / "model.safetensors").chmod(0o644)
    _write(out / "config.json", config)
    generation = {"do_sample": False, "max_new_tokens": 512}
    _write(out / "generation_config.json", {**generation, **ids})
    tokenizer.save_pretrained(out)
    (out / "chat_template.jinja").unlink(missing_ok=True)
    roles = [token for token in CONTROL if token not in (tokenizer.eos_token, tokenizer.pad_token)]
    _write(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": tokenizer.eos_token,
            "pad_token": tokenizer.pad_token,
            "additional_special_tokens": roles,
            "model_max_length": 2048,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and export the checkpoint."""
    parser = argparse.ArgumentParser(description="Export a checkpoint as a model folder.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="file written by training")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    options = parser.parse_args(arguments)
    export(options.checkpoint, AutoTokenizer.from_pretrained(options.tokenizer), options.out)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"{options.out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
