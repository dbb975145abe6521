"""Fixtures of the gateway's tests: a small tokenizer with a chat template, and the real engine on a
null device."""

import json
import string
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from continuo.realtime.server.config.settings import GatewaySettings
from tests.support.digest_runner import VOCABULARY
from tests.support.engines import EngineHarness, digest_engine
from tests.support.redis_process import REDIS_SERVER, RedisProcess
from tests.support.sessions import SessionDriver, open_session
from tests.support.web_servers import TENANTS, RunningServer, serve_harness

TEMPLATE = (
    "{%- if tools %}<|im_start|>tools\n"
    "{%- for tool in tools %}{{ tool.function.name }} {% endfor %}<|im_end|>\n{% endif -%}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}"
    "call {{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor -%}"
    "<|im_end|>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)


def chat_folder(folder: Path, *, bytes: bool = False, endless: bool = False) -> Path:
    """Write a checkpoint folder without weights: tokenizer, chat template, stop id. Returns it.

    The tokenizer has one id per character, in the ids 0 to VOCABULARY - 1 that the null device
    draws; id 0 ends a message. `bytes` adds ids for the remaining byte values. `endless` gives the
    special tokens the highest ids instead of the lowest: the null device draws none of these, so
    that a message never ends.
    """
    characters = "\n " + string.ascii_letters + string.digits + ".,:;!?'\"-_+*/=()[]{}<>|@#"
    spelled = [character.replace(" ", "Ġ").replace("\n", "Ċ") for character in characters]
    special = ["<|im_end|>", "<|im_start|>"]
    names = spelled if endless else [*special, *spelled]
    names += [f"~{n}" for n in range(VOCABULARY - len(names))]
    if bytes:
        names += sorted({*ByteLevel.alphabet()} - {*names})
    if endless:
        names += special
    tokenizer = Tokenizer(BPE({name: n for n, name in enumerate(names)}, [], unk_token="~0"))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "chat_template": TEMPLATE,
                "eos_token": "<|im_end|>",
            }
        )
    )
    (folder / "config.json").write_text(json.dumps({"eos_token_id": names.index(special[0])}))
    return folder


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("chat_model"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def redis(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RedisProcess]:
    """Run one Redis server for all tests that neither stop nor reconfigure it."""
    if REDIS_SERVER is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    await process.start()
    yield process
    process.stop()


@pytest.fixture
def engine_options() -> dict[str, Any]:
    """Options of the engine besides those of `harness`; a file may override this fixture."""
    return {}


@pytest.fixture
async def harness(chat_model: Path, engine_options: dict[str, Any]) -> AsyncIterator[EngineHarness]:
    sizes = {"pages": 256, "page_size": 4, "max_model_len": 400, "batched_tokens": 64}
    async with digest_engine(chat_model, **{**sizes, **engine_options}) as harness:
        yield harness


@pytest.fixture
async def driver(harness: EngineHarness) -> AsyncIterator[SessionDriver]:
    driver = await open_session(harness)
    yield driver
    await driver.session.close()
    assert await harness.engine.fleet.list_sessions() == [], "every session is closed in the engine"


@pytest.fixture
def gateway_settings() -> GatewaySettings:
    """Settings of `server`; a file may override this fixture."""
    return GatewaySettings(tenants=TENANTS, served_model_name=("demo", "alias"))


@pytest.fixture
async def server(
    harness: EngineHarness, gateway_settings: GatewaySettings
) -> AsyncIterator[RunningServer]:
    async with serve_harness(harness, gateway_settings) as server:
        yield server
