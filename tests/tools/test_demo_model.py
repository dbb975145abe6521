"""Tests of the recipe of the bundled model: its generator, and the patterns of its evaluation."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from tools.demo_model import plots, story
from tools.demo_model.evaluate_free_use import QUESTIONS, read_questions, table
from tools.demo_model.generate import converse, mixed_plan
from tools.demo_model.template import render

CONVERSATIONS = 400


def test_every_generated_answer_is_right() -> None:
    """The conditions on the right answer of each turn hold for the answer that is trained on."""
    for seed in range(CONVERSATIONS):
        rng = random.Random(seed)
        conversation = converse(rng, mixed_plan(rng), held_out=seed % 4 == 0)
        for turn in conversation.turns:
            if turn.skill != "tool":
                last = turn.messages[-1]
                assert turn.expects[-1].holds(str(last["content"])), turn
        again = random.Random(seed)
        assert converse(again, mixed_plan(again), held_out=seed % 4 == 0) == conversation


def test_plots_do_not_read_alike() -> None:
    """At least twenty plots, of a hundred words or more, and no two share a sentence."""
    told = [story.long_text(random.Random(7), story.Told(plot, CAST)) for plot in plots.PLOTS]
    assert len(told) >= 20
    assert all(len(text.split()) >= 100 for text in told)
    sentences = Counter(
        sentence
        for text in told
        for sentence in set(text.replace("!", ".").replace("?", ".").split(". "))
        if len(sentence.split()) > 4
    )
    assert sentences.most_common(1)[0][1] == 1


CAST = story.Cast("a dragon", "Ada", she=True, kind="toad", friend="Hal", place="by a lake")


def test_an_interrupted_answer_is_not_learned() -> None:
    """Training does not learn to end an answer where the user interrupted it, only what follows."""
    rng = random.Random(1)
    turn, _ = story.ask_story(rng, story.Style(), held_out=False)
    cut, *_, rest = story.interrupted(rng, story.Style(), turn)
    whole = str(turn.messages[1]["content"])
    assert f"{cut.messages[1]['content']} {rest.messages[1]['content']}" == whole
    assert not any(segment.learned for segment in render(cut.messages))
    assert [segment.learned for segment in render(rest.messages)][-1]


@pytest.mark.parametrize(
    "path", sorted(QUESTIONS.parent.glob("questions_*.json")), ids=lambda p: p.stem
)
def test_patterns_judge_their_examples(path: Path) -> None:
    """The example of a good answer is judged good and the example of a bad one is not.

    Only ids are shown, because the questions are not to be read before training ends.
    """
    entries = json.loads(path.read_text())
    judged = zip(entries, read_questions(path), strict=True)
    wrong = [
        entry["id"]
        for entry, question in judged
        if question.verdict(entry["good_example"]) != "good"
        or question.verdict(entry["bad_example"]) == "good"
    ]
    assert wrong == []


def test_table_has_percentages_of_each_group() -> None:
    """A row for each group, with the shares of good, absurd and other answers."""
    rows = table({"all": Counter(good=3, absurd=1), "facts": Counter(neither=2)})
    assert "| all | 4 | 75 | 25 | 0 |" in rows
    assert "| facts | 2 | 0 | 0 | 100 |" in rows
