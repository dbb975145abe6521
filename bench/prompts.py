"""Random ids to send."""

import random

from continuo.bench.targets.target import Ids, Prompts

IDS = range(1, 1024)
"""Ids that any model has, without 0, the stop id of the models of `random_checkpoints`."""


def random_ids(source: random.Random, count: int) -> Ids:
    return source.choices(IDS, k=count)


def random_prompts(sessions: int, turns: int, ids_in: int, seed: int = 0) -> Prompts:
    source = random.Random(seed)
    return [[random_ids(source, ids_in) for _ in range(turns)] for _ in range(sessions)]
