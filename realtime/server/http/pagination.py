"""Pages of lists: the query parameters `after`, `limit` and `order` of OpenAI's list endpoints."""

from collections.abc import Sequence

from starlette.datastructures import QueryParams

from continuo.realtime.protocol.items import Item
from continuo.realtime.protocol.validation import invalid_parameter

LIMIT_DEFAULT, LIMIT_MAX = 20, 100


def select_page(items: Sequence[Item], query: QueryParams) -> tuple[Sequence[Item], bool]:
    """Return the items of the requested page, and whether more follow. Raises Refusal."""
    order, limit = query.get("order", "desc"), query.get("limit", str(LIMIT_DEFAULT))
    if order not in ("asc", "desc"):
        raise invalid_parameter("order", "expected 'asc' or 'desc'.")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= LIMIT_MAX):
        raise invalid_parameter("limit", f"expected a number from 1 to {LIMIT_MAX}.")
    ordered = list(items) if order == "asc" else list(reversed(items))
    after = query.get("after")
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item.id == after]
        if not places:
            raise invalid_parameter("after", "no item of this list has that id.")
        ordered = ordered[places[0] + 1 :]
    return ordered[: int(limit)], len(ordered) > int(limit)
