"""Trials of grammars in the process of the test: as `TrialProcesses`, without limits."""

import llguidance

from continuo.engine import CacheSize, Grammar, SchemaError
from continuo.engine.text import build_trial_source
from continuo.engine.text.grammar_trial import find_problem

VOCABULARY = llguidance.LLTokenizer("byte")


class TrialsHere:
    """For tests that may not start processes, or run on virtual time."""

    size = CacheSize(0, 0)

    async def find_problem(self, grammar: Grammar) -> str | None:
        return find_grammar_problem(grammar)

    async def stop(self) -> None:
        pass


def find_grammar_problem(grammar: Grammar) -> str | None:
    try:
        return find_problem(VOCABULARY, build_trial_source(grammar)) or None
    except SchemaError as error:
        return str(error)


def find_schema_problem(schema: str) -> str | None:
    return find_grammar_problem(Grammar("json_schema", schema))
