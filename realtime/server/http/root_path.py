"""Root path: the path prefix under which a proxy serves this server (`--root-path`). Both kinds of
proxy work: those that remove the prefix from the request, and those that leave it.

A slash at the end of a path means nothing. It is removed instead of redirected: behind a proxy this
server knows neither the scheme nor the host of the address that the client uses.
"""

from starlette.types import Scope


def strip_root_path(scope: Scope, root_path: str) -> Scope:
    """Remove `root_path` from the path of a request, if it is there, and return its scope, changed
    in place: the request observer finds the route of the request in it."""
    path: str = scope["path"]
    if not root_path or not path.startswith(f"{root_path}/"):
        return scope
    scope.update(path=path.removeprefix(root_path), root_path="")
    return scope


def strip_trailing_slash(scope: Scope) -> None:
    """Remove the slashes at the end of the path of a request, in place. The page at `/` keeps its
    slash."""
    scope["path"] = scope["path"].rstrip("/") or "/"


def is_root_without_slash(scope: Scope, root_path: str) -> bool:
    """Whether a request is for the page at the root path, without the slash at its end, relative to
    which the page finds its files."""
    return bool(root_path) and scope["type"] == "http" and scope["path"] == root_path
