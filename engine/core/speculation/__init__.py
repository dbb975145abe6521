"""Speculative decoding: drafts of the ids that turns will draw, and whether they pay."""

from continuo.engine.core.speculation.prompt_lookup import PromptLookup
from continuo.engine.core.speculation.speculation import NO_DRAFTS, Drafter, Speculation
from continuo.engine.core.speculation.tree_lookup import TreeLookup

__all__ = ["NO_DRAFTS", "Drafter", "PromptLookup", "Speculation", "TreeLookup"]
