"""`continuo models`: the models that are on this machine, small ones that would fit, and the
families that run."""

import shutil
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from continuo.engine import BUNDLED_MODEL, KNOWN_ARCHITECTURES, available_memory_bytes
from continuo.realtime.server.own_command import find_own_command

BYTES_PER_PARAMETER = 2
"""Bytes of a parameter in bf16, in which models of this size run on a CPU and a GPU."""
SERVER_BYTES, KV_POOL_BYTES_MAX, KV_POOL_FRACTION = 1_500_000_000, 1 << 30, 0.25
"""Memory besides the weights: of the two processes, and of the KV pool on a CPU, which takes a
fraction of the memory that is available."""


class SuggestedModel(msgspec.Struct, frozen=True):
    """A small instruction-tuned checkpoint of the Hugging Face hub, under Apache-2.0."""

    name: str
    parameter_count: int
    """Number of parameters, computed from its config.json; tied embeddings count once."""

    @property
    def weights_bytes(self) -> int:
        return self.parameter_count * BYTES_PER_PARAMETER

    def fits(self, memory_bytes: int) -> bool:
        kv_pool_bytes = min(KV_POOL_BYTES_MAX, int(memory_bytes * KV_POOL_FRACTION))
        return self.weights_bytes + kv_pool_bytes + SERVER_BYTES <= memory_bytes


SUGGESTED_MODELS = (
    SuggestedModel("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
    SuggestedModel("HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120),
    SuggestedModel("Qwen/Qwen3-0.6B", 596_049_920),
    SuggestedModel("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304),
    SuggestedModel("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384),
    SuggestedModel("Qwen/Qwen3-1.7B", 1_720_574_976),
    SuggestedModel("Qwen/Qwen3-4B-Instruct-2507", 4_022_468_096),
    SuggestedModel("Qwen/Qwen3-8B", 8_190_735_360),
)


class CachedModel(msgspec.Struct, frozen=True):
    name: str
    size_bytes: int
    path: str


def list_cached_models() -> list[CachedModel]:
    """Return the models of the Hugging Face cache that have configuration and weights."""
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    models = [
        CachedModel(repo.repo_id, repo.size_on_disk, str(repo.repo_path))
        for repo in repos
        if repo.repo_type == "model"
        and any(map(_is_complete, (r.snapshot_path for r in repo.revisions)))
    ]
    return sorted(models, key=lambda model: model.name)


def print_models() -> None:
    print(f"{BUNDLED_MODEL:<48} bundled")
    for model in list_cached_models():
        print(f"{model.name:<48} {model.size_bytes / 1e9:,.1f} GB  {model.path}")
    memory_bytes = available_memory_bytes()
    available = "" if memory_bytes is None else f" ({memory_bytes / 1e9:,.1f} GB are available)"
    print(f"\nSmall models that are downloaded when first served, and their memory{available}:\n")
    print(f"{'':<38}{'parameters':>14}{'weights in bf16':>18}")
    for model in SUGGESTED_MODELS:
        fits = memory_bytes is None or model.fits(memory_bytes)
        print(
            f"{model.name:<38}{model.parameter_count / 1e6:>12,.0f} M"
            f"{model.weights_bytes / 1e9:>15,.1f} GB{'' if fits else '   too large here'}"
        )
    print(
        f"\nServe one with: {find_own_command()} serve --model NAME\n"
        "NAME may also be another id of the hub, a folder in its layout, or a GGUF file.\n"
    )
    for line in describe_families(shutil.get_terminal_size((100, 0)).columns):
        print(line)


def describe_families(width: int) -> Iterator[str]:
    """Yield lines of `width` columns that list the families by what runs them, and those that are
    refused by the reason."""
    yield "Families that run in the engine's own decoder:"
    yield from _wrap((x.models for x in KNOWN_ARCHITECTURES if x.way in ("C", "torch")), width)
    yield "Families that run through transformers, which is slower:"
    yield from _wrap((x.models for x in KNOWN_ARCHITECTURES if x.way == "transformers"), width)
    yield "Families that are refused:"
    for reason in dict.fromkeys(x.reason for x in KNOWN_ARCHITECTURES if x.way == "refused"):
        models = (x.models for x in KNOWN_ARCHITECTURES if x.reason == reason)
        yield from _wrap(models, width, f"{reason}: ")


def _wrap(names: Iterable[str], width: int, start: str = "") -> list[str]:
    # A line is broken between two families, not within the name of one.
    text = start + "; ".join(name.replace(" ", "\0") for name in names)
    lines = textwrap.wrap(
        text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )
    return [line.replace("\0", " ") for line in lines]


def _is_complete(snapshot: Path) -> bool:
    return (snapshot / "config.json").exists() and any(snapshot.glob("*.safetensors"))
