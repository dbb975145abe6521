"""Read the reasoning of a server through LiteLLM and LangChain, in their own environment.

    .venv-middleware/bin/python -m tests.clients.middleware_reasoning KEY URL

Prints, as JSON, the reasoning and the text that each library returns for a question, whole and
streamed, and for a second question that sends the first answer back.
"""
# pyright: reportMissingImports=false

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched from the network

import litellm
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_openai import ChatOpenAI

QUESTION, NEXT = "The weather?", "And tomorrow?"
Read = tuple[str, str]
"""Reasoning and text."""


def read_litellm(url: str, key: str) -> list[Read]:
    fields: dict[str, Any] = {"api_base": url, "api_key": key, "max_retries": 0}
    model, first = "hosted_vllm/demo", {"role": "user", "content": QUESTION}
    message = litellm.completion(model, [first], **fields).choices[0].message
    chunks = litellm.completion(model, [first], stream=True, **fields)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    history = [first, message.model_dump(), {"role": "user", "content": NEXT}]
    second = litellm.completion(model, history, **fields).choices[0].message
    return [
        (message.reasoning_content, message.content),
        (
            "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas),
            "".join(delta.content or "" for delta in deltas),
        ),
        (second.reasoning_content, second.content),
    ]


def read_langchain(url: str, key: str, *, responses: bool) -> list[Read]:
    chat = ChatOpenAI(
        model="demo",
        base_url=url,
        api_key=key,
        max_retries=0,
        use_responses_api=responses,
        reasoning_effort="low",
        output_version="responses/v1" if responses else None,
    )
    first = ("user", QUESTION)
    message = chat.invoke([first])
    streamed = AIMessageChunk(content="")
    for chunk in chat.stream([first]):
        streamed += chunk
    second = chat.invoke([first, message, ("user", NEXT)])
    return [_read_message(one) for one in (message, streamed, second)]


def _read_message(message: AIMessage) -> Read:
    """Read the reasoning items among the blocks of a message of LangChain."""
    content: Sequence[Any] = message.content if isinstance(message.content, list) else ()
    blocks = [block for block in content if isinstance(block, dict)]
    parts = [part for block in blocks for part in block.get("content", ())]
    return "".join(part["text"] for part in parts), str(message.text)


LIBRARIES: dict[str, Callable[[str, str], list[Read]]] = {
    "litellm": read_litellm,
    "langchain": lambda url, key: read_langchain(url, key, responses=False),
    "langchain responses": lambda url, key: read_langchain(url, key, responses=True),
}


def main(key: str, url: str) -> None:
    litellm.suppress_debug_info = True
    print(json.dumps({name: read(url, key) for name, read in LIBRARIES.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
