"""ModelCheck: whether a server serves the model that the engine was started for.

Weights that were replaced behind the same name cannot be noticed.
"""

import logging

from continuo.engine.text import ModelText
from continuo.engine.upstream.errors import OtherModel, RequestRefused
from continuo.engine.upstream.server import ServerModel, UpstreamServer

log = logging.getLogger(__name__)

PROBES = ("Hello, world! 123", "Ünïcode — 日本語", "  spaces\n\tand\n\nlines ")
"""Texts of which our tokenizer and the server's must make the same ids."""


class ModelCheck:
    """Compares a server with our tokenizer and with its own first description."""

    def __init__(self, url: str, text: ModelText, max_model_len: int | None = None) -> None:
        """Args:
        url: that of the server, for messages.
        text: our tokenizer.
        max_model_len: tokens of a request for which the server must have room; None: as many as
            its first description says.
        """
        self._url = url
        self._text = text
        self._max_model_len = max_model_len
        self._name: str | None = None

    async def compare(self, server: UpstreamServer, model: ServerModel) -> None:
        """Compare a description that the server has just sent. Raises OtherModel if it cannot take
        over the sessions of the engine, else UpstreamError if it cannot be asked."""
        if self._name not in (None, model.name):
            raise OtherModel(
                f"{self._url} serves {model.name} now; this engine was started for {self._name}"
            )
        if self._max_model_len is not None and self._max_model_len > model.max_model_len:
            raise OtherModel(
                f"max_model_len is {self._max_model_len}; the server has {model.max_model_len}"
            )
        if model.vocab_size is not None and model.vocab_size < self._text.vocab_size:
            raise OtherModel(
                f"{self._url} serves a model of {model.vocab_size} ids, and the tokenizer of "
                f"{self._text.folder} has {self._text.vocab_size}"
            )
        await self._compare_tokenizer(server)
        if self._name is None:
            self._name = model.name
            self._max_model_len = self._max_model_len or model.max_model_len

    async def _compare_tokenizer(self, server: UpstreamServer) -> None:
        for probe in PROBES:
            try:
                ids = await server.tokenize(probe)
            except RequestRefused as error:
                if self._name is None:
                    log.warning(
                        "%s does not tokenize, so its tokenizer is not compared: %s",
                        self._url, error,
                    )  # fmt: skip
                return
            if ids != self._text.encode_untrusted(probe):
                raise OtherModel(
                    f"{self._url} serves a model with another tokenizer than {self._text.folder}"
                )
