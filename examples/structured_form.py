"""Fill in a form: output that always follows a schema, as a typed object.

The schema is enforced while the model generates: the answer cannot be anything else. What stands
in the fields is up to the model; the bundled one is tiny and fills them in badly.
"""

import argparse
import json
import os
import urllib.request
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class Booking(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=24)]
    city: Literal["Lisbon", "Oslo", "Rome"]
    nights: Annotated[int, Meta(ge=1, le=14)]
    room: Literal["single", "double"]


def fill_in(url: str, text: str) -> Booking:
    form = {"type": "json_schema", "name": "booking", "schema": msgspec.json.schema(Booking)}
    body = {"input": f"Fill in the form: {text}", "text": {"format": form}}
    request = urllib.request.Request(f"{url}/v1/responses", json.dumps(body).encode())
    request.add_header("Authorization", f"Bearer {os.environ.get('CONTINUO_API_KEY', 'none')}")
    with urllib.request.urlopen(request) as answer:
        response: dict[str, Any] = json.load(answer)
    message = next(item for item in response["output"] if item["type"] == "message")
    return msgspec.json.decode(message["content"][0]["text"], type=Booking)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument(
        "text", nargs="?", default="I am Ada, and I want a double room in Rome for 3 nights."
    )
    arguments = parser.parse_args()
    booking = fill_in(arguments.url, arguments.text)
    for field, value in msgspec.structs.asdict(booking).items():
        print(f"{field:8} {value}")
