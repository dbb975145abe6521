"""Run errors of a server through LiteLLM and LangChain, in their own environment.

    .venv-middleware/bin/python -m tests.clients.middleware KEY NAME=URL...

Prints, as JSON, the exception classes that each library raises for each case: all classes of the
exception, because applications catch a base class of their library.
"""
# pyright: reportMissingImports=false

import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched from the network

import litellm
from langchain_openai import ChatOpenAI

Messages = list[dict[str, str]]
HELLO: Messages = [{"role": "user", "content": "hello"}]
LONG: Messages = [{"role": "user", "content": "word " * 5000}]
HISTORY: Messages = [{"role": "user", "content": "x" * 100} for _ in range(4)]


class Case(NamedTuple):
    server: str
    messages: Messages = HELLO
    model: str = "demo"
    key: str | None = None


CASES = {
    "wrong key": Case("plain", key="sk-wrong"),
    "one text over the context": Case("plain", LONG),
    "prompt over the context": Case("plain", HISTORY),
    "unknown model": Case("plain", model="other"),
    "server not ready": Case("closed"),
    "rate limit": Case("limited"),
}
Call = Callable[[str, str, Case], Any]


def call_litellm(url: str, key: str, case: Case, provider: str = "openai") -> Any:
    return litellm.completion(
        f"{provider}/{case.model}",
        case.messages,
        api_base=url,
        api_key=key,
        max_retries=0,
        max_tokens=4,
    )


def call_langchain(url: str, key: str, case: Case, *, responses: bool = False) -> Any:
    model: Any = ChatOpenAI
    chat = model(
        model=case.model, base_url=url, api_key=key, max_retries=0, use_responses_api=responses
    )
    return chat.invoke([(message["role"], message["content"]) for message in case.messages])


LIBRARIES: dict[str, Call] = {
    "litellm": call_litellm,
    "litellm hosted_vllm": lambda *given: call_litellm(*given, provider="hosted_vllm"),
    "langchain": call_langchain,
    "langchain responses": lambda *given: call_langchain(*given, responses=True),
}


def raised_classes(call: Call, url: str, key: str, case: Case) -> list[str]:
    """Return the names of the classes of the exception that a call raises; empty without one."""
    try:
        call(url, case.key or key, case)
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__]
    return []


def main(key: str, *servers: str) -> None:
    litellm.suppress_debug_info = True
    urls = dict(server.split("=", 1) for server in servers)
    call_litellm(urls["limited"], key, CASES["rate limit"])  # uses the limit up
    found = {
        library: {
            name: raised_classes(call, urls[case.server], key, case) for name, case in CASES.items()
        }
        for library, call in LIBRARIES.items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
