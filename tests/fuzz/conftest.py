"""Fixtures: servers with an engine on a null device."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers

from tests.fuzz.target import target
from tests.realtime.conftest import chat_folder
from tests.support.checkpoints import QWEN_SPLIT
from tests.support.web_servers import RunningServer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_folder(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="session")
def large_context_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that splits words, as those of current models do.

    One of its tokens is so long that the limit of characters refuses hardly any text.
    """
    folder = chat_folder(tmp_path_factory.mktemp("large_context"))
    file = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    words = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    tokenizer.add_special_tokens([AddedToken(f"<|{'x' * 124}|>", special=True)])
    tokenizer.save(file)
    return folder


@pytest.fixture
async def large_context_server(large_context_folder: Path) -> AsyncIterator[RunningServer]:
    async with target(large_context_folder, max_model_len=32 * 1024) as server:
        yield server


@pytest.fixture
async def server(folder: Path) -> AsyncIterator[RunningServer]:
    async with target(folder) as server:
        yield server
