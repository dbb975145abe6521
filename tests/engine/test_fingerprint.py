"""Tests of the fingerprint: the digest of a model, and the check of it when a session is opened."""

import asyncio
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from continuo.engine import fingerprint as module
from continuo.engine.client.engine_client import EngineClient
from continuo.engine.errors import EngineLost, ModelError
from continuo.engine.fingerprint import compute_fingerprint
from continuo.engine.wire.messages import AttachSession, CommandDone, CommandRefused, OpenSession
from tests.engine.server.test_invalid_arguments import raw_client
from tests.support.engines import digest_engine
from tests.support.waiting import wait_until

TENSORS = {"a": (0, 40_000), "b": (40_000, 100_000), "c": (100_000, 100_100)}


def write_weights(file: Path, change: int | None = None) -> None:
    """Write a safetensors file, with byte `change` of its tensors changed."""
    header = msgspec.json.encode(
        {name: {"dtype": "U8", "shape": [1], "data_offsets": at} for name, at in TENSORS.items()}
    )
    data = bytearray(range(100)) * 1001
    if change is not None:
        data[change] ^= 1
    file.write_bytes(struct.pack("<Q", len(header)) + header + data)


@pytest.fixture
def folder(letters: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(letters, folder)
    write_weights(folder / "model.safetensors")
    return folder


def test_copied_model_has_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("not read")
    assert compute_fingerprint(str(folder)) == compute_fingerprint(str(tmp_path / "copy"))


CHANGES: dict[str, Callable[[Path], object]] = {
    "config": lambda f: (f / "config.json").write_text('{"eos_token_id": 1}'),
    "tokenizer": lambda f: (f / "tokenizer.json").write_text("{}"),
    "template": lambda f: (f / "chat_template.jinja").write_text("{{ messages }}"),
    "template in the tokenizer's config": lambda f: (f / "tokenizer_config.json").write_text("{}"),
    "weights": lambda f: write_weights(f / "model.safetensors", 20_000),
    "no weights": lambda f: (f / "model.safetensors").unlink(),
    "another weights file": lambda f: (
        (f / "model.safetensors.index.json").write_text(
            '{"weight_map": {"a": "other.safetensors"}}'
        )
        and shutil.copy(f / "model.safetensors", f / "other.safetensors")
    ),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("whole", [True, False])
def test_changed_model_has_another_fingerprint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, whole: bool
) -> None:
    """Weights too large to be read whole are covered too."""
    if not whole:
        monkeypatch.setattr(module, "WHOLE_BYTES_MAX", 1000)
    before = compute_fingerprint(str(folder))
    CHANGES[name](folder)
    assert compute_fingerprint(str(folder)) != before


@pytest.mark.parametrize("change", [20_000, 70_000, 100_050])
def test_change_in_any_tensor_of_large_weights_changes_the_fingerprint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES_MAX", 1000)
    before = compute_fingerprint(str(folder))
    write_weights(folder / "model.safetensors", change)
    assert compute_fingerprint(str(folder)) != before


def test_malformed_weights_cannot_be_identified(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES_MAX", 10)
    for content in (b"\xff" * 100, struct.pack("<Q", 2) + b"[]" + b"0" * 100):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(ModelError, match="cannot be identified"):
            compute_fingerprint(str(folder))


async def test_engine_refuses_a_session_of_another_model(letters: Path) -> None:
    async with (
        digest_engine(letters) as harness,
        raw_client(harness, await harness.listen()) as client,
    ):
        fingerprint = harness.engine.ready.digest
        for digest, code in (("0123456789abcdef", "other_model"), (fingerprint, None), ("", None)):
            opened = OpenSession(1, f"opened {digest}", digest=digest)
            attach = AttachSession(
                2, msgspec.structs.replace(opened, session=f"attached {digest}"), [1]
            )
            for command in (opened, attach):
                client.events.clear()
                reply = await client.request(command)
                assert isinstance(reply, CommandRefused if code else CommandDone)
                if isinstance(reply, CommandRefused):
                    assert (reply.code, reply.field) == (code, "digest")
                    assert digest in reply.message
                    assert fingerprint in reply.message
        assert (await harness.engine.fleet.stats()).sessions == 4


async def test_engine_client_refuses_a_second_engine_with_another_model(
    letters: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second engine has the same name, vocabulary and context length."""
    async with digest_engine(letters) as one, digest_engine(folder) as two:
        ports = [await harness.listen() for harness in (one, two)]
        engine = EngineClient()
        engine.fleet.add("127.0.0.1", ports[0])
        async with asyncio.timeout(20):
            await engine.wait_until_ready()
        engine.fleet.add("127.0.0.1", ports[1])
        await wait_until(lambda: "its digest is" in caplog.text)
        assert not engine.fleet.is_responsive_at("127.0.0.1", ports[1])
        await engine.open("s")
        await engine.stop()
        with pytest.raises(EngineLost):
            await engine.open("t")
