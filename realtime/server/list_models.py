"""`continuo models`: what can be served without a download."""

from pathlib import Path

import msgspec
from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from continuo.engine import BUNDLED


class Found(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    where: str


def cached() -> list[Found]:
    """Models of the Hugging Face cache whose configuration and weights are there."""
    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found = [
        Found(repo.repo_id, repo.size_on_disk, str(repo.repo_path))
        for repo in repos
        if repo.repo_type == "model" and any(map(_whole, (r.snapshot_path for r in repo.revisions)))
    ]
    return sorted(found, key=lambda model: model.name)


def show() -> None:
    print(f"{BUNDLED:<48} bundled")
    for model in cached():
        print(f"{model.name:<48} {model.bytes / 1e9:,.1f} GB  {model.where}")
    print()
    print("Serve one with: continuo serve --model NAME")
    print("Any other hub id is downloaded first; a folder works too.")


def _whole(snapshot: Path) -> bool:
    return (snapshot / "config.json").exists() and any(snapshot.glob("*.safetensors"))
