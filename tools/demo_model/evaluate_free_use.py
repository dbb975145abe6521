"""Measurement of an exported model folder on questions of free use, with greedy decoding.

Each question is a list of user messages, which the model answers one after the other; its last
answer is judged by the question's patterns (see free_use/README.md). Only percentages are printed:
the questions measure what people who have not seen them make of the model.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.demo_model.turns import Message

FOLDER = Path(__file__).parent / "free_use"
QUESTIONS = FOLDER / "questions_before_training.json"
BATCH = 200
ANSWER_TOKENS_MAX = 400


@dataclass(frozen=True)
class Question:
    """User messages, and the patterns that find a good or an absurd last answer."""

    kind: str
    messages: tuple[str, ...]
    as_typed: bool
    good: tuple[str, ...]
    absurd: tuple[str, ...]

    def verdict(self, answer: str) -> str:
        """Judge the last answer: "good", "absurd" or "neither"."""
        if _any_found(self.absurd, answer):
            return "absurd"
        return "good" if _any_found(self.good, answer) else "neither"


def _any_found(patterns: Sequence[str], answer: str) -> bool:
    return any(re.search(pattern, answer, re.IGNORECASE) for pattern in patterns)


def read_questions(path: Path) -> list[Question]:
    """Read the questions of a JSON file.

    The patterns of ``absurd_always.json`` are added to those of every question.
    """
    always = [entry["pattern"] for entry in json.loads((FOLDER / "absurd_always.json").read_text())]
    return [
        Question(
            kind=entry["kind"],
            messages=tuple(entry["messages"]),
            as_typed=bool(entry.get("as_typed")),
            good=tuple(entry["good"]),
            absurd=(*entry["absurd"], *always),
        )
        for entry in json.loads(path.read_text())
    ]


class Model:
    """Exported model, which answers several conversations at once by greedy decoding."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.padding_side = "left"
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def answers(self, conversations: Sequence[Sequence[Message]]) -> list[str]:
        """Generate the next answer of each conversation."""
        prompts = [
            self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
            for messages in conversations
        ]
        batch = self.tokenizer(prompts, return_tensors="pt", padding=True)
        batch.pop("token_type_ids", None)
        out = self.model.generate(**batch, max_new_tokens=ANSWER_TOKENS_MAX, do_sample=False)
        said = out[:, batch["input_ids"].shape[1] :]
        return self.tokenizer.batch_decode(said, skip_special_tokens=True)


def converse(model: Model, questions: Sequence[Question]) -> list[list[Message]]:
    """Have the model answer every message of every question. Returns the conversations."""
    conversations: list[list[Message]] = [[] for _ in questions]
    for turn in range(max(len(question.messages) for question in questions)):
        open_ones = [i for i, question in enumerate(questions) if turn < len(question.messages)]
        for begin in range(0, len(open_ones), BATCH):
            indices = open_ones[begin : begin + BATCH]
            for index in indices:
                text = questions[index].messages[turn]
                conversations[index].append({"role": "user", "content": text})
            answers = model.answers([conversations[index] for index in indices])
            for index, answer in zip(indices, answers, strict=True):
                conversations[index].append({"role": "assistant", "content": answer})
    return conversations


def _row(name: str, verdicts: Counter[str]) -> str:
    total = verdicts.total()
    shares = (f"{100 * verdicts[verdict] / total:.0f}" for verdict in ("good", "absurd", "neither"))
    return f"| {name} | {total} | {' | '.join(shares)} |"


def table(verdicts: Mapping[str, Counter[str]]) -> str:
    """Format the percentages as a table, with a row for each of the groups of questions."""
    head = "| questions | n | good, % | absurd, % | neither, % |\n|---|---|---|---|---|"
    return "\n".join([head, *(_row(name, counts) for name, counts in verdicts.items())])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure a model folder and print the percentages of good and of absurd answers."""
    parser = argparse.ArgumentParser(description="Measure a model folder on free use.")
    parser.add_argument(
        "--model", type=Path, default=Path("engine/bundled/demo"), help="model folder"
    )
    parser.add_argument(
        "--questions", type=Path, default=QUESTIONS, help=f"default {QUESTIONS.name}"
    )
    parser.add_argument("--show", action="store_true", help="print the conversations, too")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    options = parser.parse_args(arguments)
    if options.show and options.questions.resolve() == QUESTIONS.resolve():
        parser.error(f"--show: {QUESTIONS.name} is not to be read before training ends")
    torch.set_num_threads(options.threads)
    questions = read_questions(options.questions)
    rows: dict[str, Counter[str]] = {"all": Counter(), "as people type": Counter()}
    for question, messages in zip(
        questions, converse(Model(options.model), questions), strict=True
    ):
        verdict = question.verdict(messages[-1]["content"])
        groups = ["all", question.kind, *(["as people type"] if question.as_typed else [])]
        for group in groups:
            rows.setdefault(group, Counter())[verdict] += 1
        if options.show:
            print(f"[{question.kind}] {verdict}")
            for message in messages:
                print(f"    {'>' if message['role'] == 'user' else '<'} {message['content']}")
    print(table({name: counts for name, counts in rows.items() if counts}))


if __name__ == "__main__":
    main()
