"""The load of a vLLM server, from its Prometheus metrics. Pure."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from continuo.engine.upstream.server import ServerLoad

_SAMPLE = re.compile(r"^(vllm:\w+)(?:\{(.*)\})? ([-+\w.]+)(?: \d+)?$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class _Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


def find_block_tokens(text: str) -> int | None:
    """Return the tokens of a cache block. Returns None if no metric has them."""
    infos = _find(text, "vllm:cache_config_info")
    return next((size for info in infos if (size := _count(info, "block_size"))), None)


def read_load(text: str) -> ServerLoad:
    """Read the load of a server; of one with several engines, their sum."""
    infos = list(_find(text, "vllm:cache_config_info"))
    total = sum(_count(info, "block_size") * _count(info, "num_gpu_blocks") for info in infos)
    shares = [sample.value for sample in _find(text, "vllm:kv_cache_usage_perc")]
    used = total * sum(shares) / len(shares) if shares else 0.0
    return ServerLoad(
        kv_tokens=total,
        kv_tokens_used=int(used),
        running=int(sum(sample.value for sample in _find(text, "vllm:num_requests_running"))),
        waiting=int(sum(sample.value for sample in _find(text, "vllm:num_requests_waiting"))),
    )


def _find(text: str, name: str) -> Iterator[_Sample]:
    for found in _SAMPLE.finditer(text):
        if found[1] == name:
            yield _Sample(name, dict(_LABEL.findall(found[2] or "")), float(found[3]))


def _count(sample: _Sample, label: str) -> int:
    value = sample.labels.get(label, "")
    return int(value) if value.isdecimal() else 0
