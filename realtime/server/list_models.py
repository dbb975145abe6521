"""`continuo models`: list the models that can be served without a download."""

from pathlib import Path

import msgspec
from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from continuo.engine import BUNDLED_MODEL


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
    print()
    print("Serve one with: continuo serve --model NAME")
    print("Other hub ids are downloaded first; a folder works too.")


def _is_complete(snapshot: Path) -> bool:
    return (snapshot / "config.json").exists() and any(snapshot.glob("*.safetensors"))
