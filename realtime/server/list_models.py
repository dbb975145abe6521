"""`continuo models`: the models of this machine, small ones that would fit, what each needs in
memory on a CPU, and the families that run."""

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from huggingface_hub import scan_cache_dir
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import CacheNotFound

from continuo.engine import (
    BUNDLED_MODEL,
    KNOWN_ARCHITECTURES,
    PAGE_TOKENS,
    ModelError,
    ModelSize,
    available_memory_bytes,
    cpu_pool_bytes,
    find_local_checkpoint,
    format_bytes,
    print_line,
    read_model_size,
    suggest_models,
)
from continuo.realtime.errors import SetupError
from continuo.realtime.server.own_command import find_own_command

SERVER_BYTES = 1 << 30
"""Memory besides weights and KV: of the two processes, for the logits and buffers of a step, and
for rotary tables."""
SESSION_TOKENS = 4096
"""Length of the sessions that are counted."""
FORMATS = ("float32", "bfloat16", "int8", "int4")
"""Formats of weights: a dtype, or a quantization of those in the dtype of `--dtype auto`."""
_DTYPE_NAMES = {"float32": "fp32", "bfloat16": "bf16"}
_HEADINGS = ("weights", *(_DTYPE_NAMES.get(form, form) for form in FORMATS))
_NAME_WIDTH, _CELL_WIDTHS = 36, (8, 9, 9, 9, 9, 10, 10, 9, 6)


class ListedModel(msgspec.Struct, frozen=True):
    name: str
    size: ModelSize | None = None
    note: str = ""
    """Line that is printed if the size is not known."""
    file_bytes: int | None = None
    """Size of a GGUF file, whose matrices stay as they are."""

    def weights_bytes(self, form: str) -> int | None:
        """Return the memory of the weights in one of FORMATS; None if they are not held in it."""
        assert self.size is not None
        if self.file_bytes is not None:
            return None
        if form not in ("int8", "int4"):
            return self.size.weights_bytes(form)
        return self.size.weights_bytes(self.size.cpu_dtype, form) if self.size.quantized else None

    def list_choices(self) -> Iterator[tuple[str, int]]:
        """Yield how the weights can be held, with their memory, in the order of their precision:
        as in a GGUF file, else as by default, in int8 and in int4."""
        assert self.size is not None
        if self.file_bytes is not None:
            yield "yes", self.size.gguf_bytes(self.file_bytes)
            return
        for form in (self.size.cpu_dtype, "int8", "int4"):
            if (weights := self.weights_bytes(form)) is not None:
                yield _DTYPE_NAMES.get(form, form), weights

    def choose(self, memory_bytes: int | None) -> tuple[str, int]:
        """Return the first of `list_choices` that a machine can serve, with the memory that its
        KV pool takes by default; "no" and that of the smallest one if it can serve none.
        `memory_bytes`: the available memory; None: not known, and taken as enough."""
        name, pool = "no", 0
        for name, weights in self.list_choices():
            left = None if memory_bytes is None else max(0, memory_bytes - weights)
            pool = cpu_pool_bytes(left)
            if left is None or pool + SERVER_BYTES <= left:
                return name, pool
        return "no", pool


def list_cached_models() -> list[ListedModel]:
    """Return the models of the Hugging Face cache that have configuration and weights."""
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found = [
        _measure(repo.repo_id, revision.snapshot_path)
        for repo in repos
        if repo.repo_type == "model"
        for revision in sorted(repo.revisions, key=lambda each: -each.last_modified)[:1]
        if _is_complete(revision.snapshot_path)
    ]
    return sorted(found, key=lambda model: model.name)


def find_model(name: str) -> ListedModel:
    """Return a model of this machine: the bundled one, a folder, a GGUF file, or a hub id in the
    cache. Raises SetupError."""
    try:
        folder = find_local_checkpoint(name)
    except ModelError as error:
        raise SetupError(str(error)) from None
    if folder is not None:
        return _measure(name, folder, Path(name).expanduser())
    if (size := suggest_models().get(name)) is not None:
        return ListedModel(name, size)
    for model in list_cached_models():
        if model.name == name:
            return model
    raise SetupError(f"{name}: not on this machine; its memory is known once it is downloaded")


def print_models(names: Sequence[str]) -> None:
    """Print the models `names`; if there are none, those of this machine, suggestions and families.
    Raises SetupError."""
    memory_bytes = available_memory_bytes()
    if names:
        _print_lines(describe_models([find_model(name) for name in names], memory_bytes))
        print_line()
        _print_lines(describe_columns(memory_bytes))
        return
    print_line(f"On this machine (downloads are kept in {HF_HUB_CACHE}):\n")
    here = [find_model(BUNDLED_MODEL), *list_cached_models()]
    _print_lines(describe_models(here, memory_bytes))
    print_line("\nSmall models that are downloaded when they are first served:\n")
    suggested = (ListedModel(name, size) for name, size in suggest_models().items())
    _print_lines(describe_models(suggested, memory_bytes))
    print_line()
    _print_lines(describe_columns(memory_bytes))
    print_line(
        f"\nServe one with: {find_own_command()} serve --model NAME\n"
        "NAME may also be another id of the hub, a folder in its layout, or a GGUF file.\n"
    )
    _print_lines(describe_families(shutil.get_terminal_size((100, 0)).columns))


def describe_models(models: Iterable[ListedModel], memory_bytes: int | None) -> Iterator[str]:
    """Yield a table of models. `memory_bytes`: the available memory; None: not known."""
    yield _row("", (*_HEADINGS, "KV/token", "KV-tokens", "sessions", "fits"))
    for model in models:
        if model.size is None:
            yield model.note
        else:
            yield _row(model.name, _describe_size(model, model.size, memory_bytes))


def _describe_size(model: ListedModel, size: ModelSize, memory_bytes: int | None) -> Iterator[str]:
    yield f"{size.parameters / 1e6:,.{0 if size.parameters >= 1e7 else 1}f} M"
    for form in FORMATS:
        weights = model.weights_bytes(form)
        yield "-" if weights is None else format_bytes(weights)
    yield format_bytes(sum(size.session_memory(size.cpu_dtype).token_bytes.values()))
    choice, pool_bytes = model.choose(memory_bytes)
    yield from ("-", "-") if choice == "no" else _count_tokens(size, pool_bytes)
    yield choice


def _count_tokens(size: ModelSize, pool_bytes: int) -> tuple[str, str]:
    """Return the tokens and the sessions that a KV pool holds."""
    try:
        plan = size.plan(size.cpu_dtype, pool_bytes)
    except ModelError:  # the pool is too small for one session
        return "0", "0"
    tokens = f"{plan.pages * PAGE_TOKENS:,}" if plan.has_full_layers else "-"
    session = min(SESSION_TOKENS, size.context)
    return tokens, f"{plan.count_sessions(session, PAGE_TOKENS):,}"


def describe_columns(memory_bytes: int | None) -> Iterator[str]:
    """Yield an explanation of the table."""
    pool = format_bytes(cpu_pool_bytes(memory_bytes))
    available = "not known" if memory_bytes is None else format_bytes(memory_bytes)
    yield "weights       number of the weights; then their memory with --dtype or --quantization"
    yield "              (-: it is not quantized, or a GGUF file, whose matrices stay as they are)"
    yield "KV/token      memory of a token's keys and values, with --dtype auto; layers with an"
    yield "              attention window keep those of its tokens alone"
    yield f"KV-tokens     tokens that the default KV pool holds, at most {pool} here"
    yield "sessions      sessions of 4,096 tokens, or of the longest context, that it holds"
    yield f"fits          the most precise format that the available memory ({available}) can serve"
    yield "              on a CPU"


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


def _row(name: str, cells: Iterable[str]) -> str:
    padded = (f"{cell:>{width}}" for cell, width in zip(cells, _CELL_WIDTHS, strict=True))
    return f"{name:<{_NAME_WIDTH}}{''.join(padded)}"


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print_line(line)


def _measure(name: str, folder: Path, file: Path | None = None) -> ListedModel:
    """Read the size of the checkpoint in `folder`. `file`: the GGUF file, if it comes from one."""
    try:
        size = read_model_size(folder)
    except ModelError as error:
        return ListedModel(name, None, str(error))
    if size is None:
        return ListedModel(name, None, f"{name}: runs through transformers; size not known")
    file_bytes = file.stat().st_size if file is not None and file.is_file() else None
    return ListedModel(name, size, file_bytes=file_bytes)


def _is_complete(snapshot: Path) -> bool:
    return (snapshot / "config.json").exists() and any(snapshot.glob("*.safetensors"))
