"""Checkpoints, as far as config.json describes them: whether they run, and by what. No torch."""
