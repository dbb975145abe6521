"""Facts about other people and animals than the user, and about several of them at once."""

import random

from tools.demo_model import values
from tools.demo_model.facts import (
    FULL_NAME,
    KINDS,
    LEADS,
    RELATIONS,
    TAILS,
    Draw,
    Kind,
    acknowledged,
    numbers,
    pool,
    relation_kind,
)
from tools.demo_model.facts import not_told_turn as facts_not_told
from tools.demo_model.grammar import Style, opened, reply, typed
from tools.demo_model.kinds import CITY, COLOUR, EVENTS, PERSONS, PETS, PLURALS, draw_further_kind
from tools.demo_model.turns import Expect, Turn, exchange, has_word

Known = dict[str, tuple[Kind, str]]
"""Facts by the key of their kind, with their values."""


def _own(subject: str) -> str:
    return f"{subject}'s"


class _Attribute:
    """The verb phrases about a person: those of the user and of the model."""

    def __init__(
        self,
        draw: Draw,
        verbs: tuple[str, ...],
        owned: tuple[str, ...],
        asks: tuple[str, ...],
        said: str,
    ) -> None:
        self.draw = draw
        self.verbs = verbs
        """Verb phrases: "lives in {v}"."""
        self.owned = owned
        """Clauses in which ``{o}`` is the person's possessive: "{o} home is in {v}"."""
        self.asks = asks
        """Questions in which ``{s}`` is the person and ``{o}`` the possessive."""
        self.said = said
        """The clause of the model, with ``{s}`` or ``{o}``."""


ATTRIBUTES = {
    "home": _Attribute(
        CITY,
        (
            "lives in {v}",
            "lives in {v} now",
            "moved to {v}",
            "has a house in {v}",
            "lives near {v}",
        ),
        ("{o} home is in {v}", "{o} house is in {v}"),
        (
            "where does {s} live?",
            "[which|what] [city|town] does {s} live in?",
            "in [which|what] [city|town] does {s} live?",
            "where is {o} [home|house]?",
            "do you know where {s} lives?",
            "tell me where {s} lives",
        ),
        "{s} lives in {v}",
    ),
    "origin": _Attribute(
        CITY,
        ("comes from {v}", "is from {v}", "was born in {v}", "grew up in {v}"),
        (),
        ("where is {s} from?", "where does {s} come from?", "where was {s} born?"),
        "{s} is from {v}",
    ),
    "job": _Attribute(
        pool(values.JOBS, 0.3),
        ("is a {v}", "works as a {v}", "is a {v} by profession", "has a job as a {v}"),
        ("{o} job is {v}",),
        (
            "what does {s} do [for a living|]?",
            "what is {o} job?",
            "what does {s} work as?",
            "do you know {o} job?",
            "what job does {s} have?",
        ),
        "{s} works as a {v}",
    ),
    "age": _Attribute(
        numbers(1, 99),
        ("is {v} years old", "is {v}", "turned {v}", "just turned {v}", "is {v} now"),
        ("{o} age is {v}",),
        ("how old is {s}?", "what is {o} age?", "do you know how old {s} is?", "what age is {s}?"),
        "{s} is {v} years old",
    ),
    "colour": _Attribute(
        COLOUR,
        ("likes {v} [best|most|]", "loves the [colour|color] {v}", "likes the [colour|color] {v}"),
        ("{o} [favourite|favorite] [colour|color] is {v}",),
        (
            "what is {o} [favourite|favorite] [colour|color]?",
            "[which|what] [colour|color] does {s} [like|love] [best|most|]?",
        ),
        "{o} favourite colour is {v}",
    ),
    "food": _Attribute(
        pool(values.FOODS, 0.3),
        ("likes to eat {v}", "loves eating {v}", "eats {v} every day", "loves {v} for dinner"),
        ("{o} [favourite|favorite] [food|dish] is {v}",),
        (
            "what is {o} [favourite|favorite] [food|dish]?",
            "what does {s} [like|love] to eat?",
            "[which|what] food does {s} like [best|]?",
        ),
        "{o} favourite food is {v}",
    ),
    "hobby": _Attribute(
        pool(values.HOBBIES, 0.3),
        ("loves {v}", "enjoys {v}", "is into {v}", "likes {v} in [his|her] free time"),
        ("{o} hobby is {v}",),
        (
            "what is {o} hobby?",
            "what does {s} [enjoy|do for fun|like to do]?",
            "which hobby does {s} have?",
        ),
        "{o} hobby is {v}",
    ),
    "pet": _Attribute(
        pool(values.ANIMALS, 0.3),
        ("has a {v}", "owns a {v}", "keeps a {v}"),
        ("{o} pet is a {v}",),
        ("what pet does {s} have?", "which animal does {s} have?", "what is {o} pet?"),
        "{s} has a {v}",
    ),
    "size": _Attribute(
        pool(values.COLOURS, 0.0),
        ("is {v}", "is completely {v}"),
        ("{o} colour is {v}",),
        (
            "what [colour|color] is {s}?",
            "what is {o} [colour|color]?",
            "which [colour|color] is {s}?",
        ),
        "{s} is {v}",
    ),
}
_THINGS = values.listed("car, bike, bicycle, house, boat, hat, coat, phone, door, bag")


def attribute_kind(subject: str, key: str) -> Kind:
    """Return the Kind for an attribute of a subject, such as "my brother" or a name."""
    attribute = ATTRIBUTES[key]
    ours = "your" + subject[2:] if subject.startswith("my ") else subject

    def fill(pattern: str, who: str) -> str:
        return pattern.replace("{s}", who).replace("{o}", _own(who))

    clauses = [f"{subject} {verb}" for verb in attribute.verbs]
    clauses += [fill(clause, subject) for clause in attribute.owned]
    asks = tuple(fill(ask, subject) for ask in attribute.asks)
    nouns = {
        "home": f"where {subject} lives",
        "origin": f"where {subject} is from",
        "job": f"{_own(subject)} job",
        "age": f"how old {subject} is",
        "colour": f"{_own(subject)} favourite colour",
        "food": f"{_own(subject)} favourite food",
        "hobby": f"{_own(subject)} hobby",
        "pet": f"which pet {subject} has",
        "size": f"what colour {subject} is",
    }
    return Kind(
        f"{subject} {key}",
        attribute.draw,
        tuple(clauses),
        asks,
        (nouns[key],),
        fill(attribute.said, ours),
        nouns[key].replace(subject, ours),
    )


def _two_names(rng: random.Random, *, held_out: bool) -> str:
    names = [FULL_NAME(rng, held_out=held_out).split()[0] for _ in range(rng.choice((2, 2, 2, 3)))]
    return " and ".join((", ".join(names[:-1]), names[-1]))


def plural_kind(plural: str) -> Kind:
    """Return the Kind for the names of several people or animals, such as the user's brothers."""
    return Kind(
        f"names {plural}",
        _two_names,
        (
            f"my {plural} are called {{v}}",
            f"my {plural} are {{v}}",
            f"I have [some|two|three|] {plural}: {{v}}",
            f"I have {plural} called {{v}}",
            f"my {plural}' names are {{v}}",
            f"the names of my {plural} are {{v}}",
            f"{{v}} are my {plural}",
            f"I have {plural} named {{v}}",
        ),
        (
            f"what are my {plural} called?",
            f"what are the names of my {plural}?",
            f"who are my {plural}?",
            f"what are my {plural}' names?",
            f"how are my {plural} called?",
        ),
        (f"the names of my {plural}", f"what my {plural} are called"),
        f"your {plural} are called {{v}}",
        f"what your {plural} are called",
    )


def children_turn(rng: random.Random, style: Style) -> tuple[Turn, Known]:
    """Make an exchange about the names and the ages of two or three children or pets."""
    plural = rng.choice(("children", "kids", "sons", "daughters", "dogs", "cats", "nieces"))
    count = rng.choice((2, 2, 3))
    names = [style.value(FULL_NAME(rng, held_out=False).split()[0]) for _ in range(count)]
    ages = [str(rng.randint(1, 20)) for _ in range(count)]
    form = rng.choice(("{n} ({a})", "{n} ({a})", "{n}, {a}", "{n} is {a}", "{n} who is {a}"))
    parts = [form.replace("{n}", n).replace("{a}", a) for n, a in zip(names, ages, strict=True)]
    listed = " and ".join((", ".join(parts[:-1]), parts[-1]))
    number = rng.choice((str(count), "two" if count == 2 else "three"))
    pattern = rng.choice(
        (
            f"I have {number} {plural}, {{list}}",
            f"I have {number} {plural}: {{list}}",
            f"my {plural} are {{list}}",
        )
    )
    user = typed(rng, style, f"{rng.choice(LEADS)} {pattern}", {"list": listed})
    said = " and ".join(f"{n} is {a} years old" for n, a in zip(names, ages, strict=True))
    answer = reply(rng, acknowledged(rng, "{said}"), {"said": said})
    kinds = [(attribute_kind(name, "age"), age) for name, age in zip(names, ages, strict=True)]
    kind = plural_kind(plural)
    known = {kind_.key: (kind_, age) for kind_, age in kinds}
    joined = " and ".join((", ".join(names[:-1]), names[-1]))
    return exchange("told", user, answer, Expect()), {**known, kind.key: (kind, joined)}


def other_turns(rng: random.Random, style: Style) -> tuple[list[Turn], Known]:
    """Make exchanges about two pets or relations of the same kind, told one after the other."""
    who = rng.choice((*PETS, "sister", "brother", "son", "daughter", "friend", "colleague"))
    first, second = relation_kind(who), relation_kind(f"other {who}")
    one, two = (style.value(FULL_NAME(rng, held_out=False).split()[0]) for _ in range(2))
    turns: list[Turn] = []
    clauses = (
        (first, one, (f"my {who} is called {{v}}", f"I have a {who} called {{v}}")),
        (
            second,
            two,
            (
                f"my [other|second] {who} is called {{v}}",
                f"[and|] the other [one|{who}] is called {{v}}",
                f"I [also|] have another {who} called {{v}}",
            ),
        ),
    )
    for kind, value, asks in clauses:
        user = typed(rng, style, rng.choice(asks), {"v": value})
        answer = reply(rng, acknowledged(rng, kind.said), {"v": value})
        turns.append(exchange("told", user, answer, Expect()))
    if rng.random() < 0.6:
        asks = (f"what are my {who}s called?", f"what are the names of my {who}s?")
        user = typed(rng, style, opened(rng, rng.choice(asks)))
        answer = f"Your {who}s are called {one} and {two}."
        turns.append(exchange("recall", user, answer, Expect(has=(has_word(one), has_word(two)))))
    return turns, {first.key: (first, one), second.key: (second, two)}


_WHO_DOES = {
    "home": ("who lives in {v}?", "[which of us|who] is in {v}?"),
    "origin": ("who is from {v}?", "who comes from {v}?"),
    "job": ("who is a {v}?", "who works as a {v}?"),
    "age": ("who is {v} [years old|]?",),
    "hobby": ("who likes {v}?", "whose hobby is {v}?"),
    "food": ("who likes {v}?", "who likes to eat {v}?"),
    "colour": ("who likes {v}?", "whose favourite colour is {v}?"),
    "pet": ("who has a {v}?",),
}


def who_does_turn(rng: random.Random, style: Style, known: Known) -> Turn | None:
    """Make an exchange about who it is that lives in a city, has a job or the like, if the user has
    told it of exactly one."""
    found = [
        (kind, value, key.split()[-1])
        for key, (kind, value) in known.items()
        if key.split()[-1] in _WHO_DOES
        and not key.startswith(("thing", "names", "amount", "feeling", "word"))
    ]
    values_ = [value for _, value, _ in found]
    found = [fact for fact in found if values_.count(fact[1]) == 1]
    if not found:
        return None
    kind, value, key = rng.choice(found)
    user = typed(rng, style, opened(rng, rng.choice(_WHO_DOES[key])), {"v": value})
    answer = reply(rng, f"{kind.said}.", {"v": value})
    return exchange("recall", user, answer, Expect(has=(has_word(value),)))


def is_attribute(key: str) -> bool:
    """Whether the key of a fact is that of an attribute of one of the user's relations."""
    return key.startswith("my ") and key.rsplit(" ", 1)[1] in ATTRIBUTES and "size" not in key


def subject_turn(rng: random.Random, style: Style, key: str, value: str) -> tuple[Turn, Known]:
    """Make an exchange in which the user corrects of whom an attribute has been told; `key` is the
    key of the attribute, such as "my sister home"."""
    _, rest = key.split(" ", 1)
    who, attribute = rest.rsplit(" ", 1)
    other = rng.choice([person for person in PERSONS if person != who])
    kind = attribute_kind(f"my {other}", attribute)
    pattern = rng.choice(
        (
            "[no,|sorry,|wait,|oops,|] I [meant|mean] my {other}",
            "[no,|sorry,|oops,|] my {other}, not my {who}",
            "[no,|sorry,|] not my {who}[,| but] my {other}",
            "[no,|sorry,|wait,|] that [is|was] my {other}",
            "[sorry,|no,] I [meant|said] my {other}, not my {who}",
        )
    )
    user = typed(rng, style, pattern, {"other": other, "who": who})
    start = rng.choice(("okay, I will remember that", "all right,", "got it:"))
    answer = reply(rng, f"{start} {kind.said}.", {"v": value})
    turn = exchange("correction", user, answer, Expect(has=(has_word(other),)))
    return turn, {kind.key: (kind, value)}


def draw_kind(rng: random.Random) -> Kind:
    """Draw a fact about somebody: a relation's attribute, a named person's or several names."""
    share = rng.random()
    if share < 0.55:
        return draw_further_kind(rng)
    if share < 0.78:
        key = rng.choice([key for key in ATTRIBUTES if key != "size"])
        who = rng.choice(PERSONS if key != "age" or rng.random() < 0.7 else PETS)
        return attribute_kind(f"my {who}", key)
    if share < 0.83:
        return attribute_kind(f"my {rng.choice((*_THINGS, *PETS))}", "size")
    if share < 0.92:
        name = values.choose(rng, values.NAMES, held_out=False)
        if rng.random() < 0.4:
            name = values.invent(rng, held_out=False).capitalize()
        return attribute_kind(name, rng.choice([key for key in ATTRIBUTES if key != "size"]))
    return plural_kind(rng.choice(PLURALS))


def _named_turn(rng: random.Random, style: Style) -> tuple[Turn, Known]:
    """Make an exchange about the name of a person and something else about that person."""
    who = rng.choice(PERSONS if rng.random() < 0.75 else PETS)
    key = rng.choice([key for key in ATTRIBUTES if key != "size"])
    if who in PETS:
        key = rng.choice(("age", "size", "food", "home"))
    name_kind, kind = relation_kind(who), attribute_kind(f"my {who}", key)
    name = style.value(name_kind.draw(rng, held_out=False))
    value = style.value(kind.draw(rng, held_out=False))
    verb = rng.choice(ATTRIBUTES[key].verbs).replace("{v}", "{b}")
    form = rng.choice(
        (
            f"my {who} {{a}} {verb}",
            f"my {who} {{a}} {verb}",
            f"my {who} is called {{a}} and {verb}",
            f"my {who} is called {{a}} and [he|she|it] {verb}",
            f"my {who}'s name is {{a}} and [he|she] {verb}",
            f"I have a {who} called {{a}} who {verb}",
            f"I have a {who} named {{a}}, [he|she] {verb}",
            f"{{a}} is my {who}. [he|she] {verb}",
            f"my {who}, {{a}}, {verb}",
            f"{{a}} is my {who} and {verb}",
        )
    )
    slots = {"a": name, "b": value}
    user = typed(rng, style, f"{rng.choice(LEADS)} {form}{_tail(rng)}", slots)
    said = f"your {who} is called {{a}} and {rng.choice(ATTRIBUTES[key].verbs[:1])}".replace(
        "{v}", "{b}"
    )
    said = expand_choice(said)
    answer = reply(rng, acknowledged(rng, said), slots)
    known = {name_kind.key: (name_kind, name), kind.key: (kind, value)}
    about = attribute_kind(name, key)
    known[about.key] = (about, value)
    return exchange("told", user, answer, Expect()), known


def expand_choice(text: str) -> str:
    """Keep the first alternative of each choice."""
    while "[" in text:
        before, _, rest = text.partition("[")
        inside, _, after = rest.partition("]")
        text = f"{before}{inside.split('|')[0]}{after}"
    return " ".join(text.split())


def _tail(rng: random.Random) -> str:
    tail = rng.choice(TAILS)
    return rng.choice((". ", ", ")) + tail if tail else ""


def _two_turn(rng: random.Random, style: Style) -> tuple[Turn, Known]:
    """Make an exchange about two people at once, the second clause often without its verb."""
    first, second = rng.sample(PERSONS if rng.random() < 0.6 else [*PETS, *RELATIONS[:4]], 2)
    form = rng.randrange(6)
    if form == 4:
        return _two_named_turn(rng, style)
    if form == 5:
        return _two_times_turn(rng, style)
    if form == 0:
        one, two = relation_kind(first), relation_kind(second)
        pattern = rng.choice(
            (
                f"my {first} is called {{a}} and my {second} {{b}}",
                f"my {first} is {{a}} and my {second} is {{b}}",
                f"my {first} is called {{a}}, my {second} is called {{b}}",
                f"my {first} and [my|] {second} are called {{a}} and {{b}}",
                f"I have a {first} called {{a}} and a {second} called {{b}}",
                f"I have a {first} and a {second}, {{a}} and {{b}}",
                f"my {first}'s name is {{a}} and my {second}'s is {{b}}",
                f"{{a}} is my {first} and {{b}} is my {second}",
            )
        )
    elif form == 1:
        one, two = attribute_kind(f"my {first}", "home"), attribute_kind(f"my {second}", "home")
        pattern = rng.choice(
            (
                f"my {first} lives in {{a}} and my {second} in {{b}}",
                f"my {first} lives in {{a}}, my {second} [lives|] in {{b}}",
                f"my {first} is in {{a}}, but my {second} lives in {{b}}",
            )
        )
    elif form == 2:
        key = rng.choice(("colour", "food", "age", "job"))
        one, two = attribute_kind(f"my {first}", key), attribute_kind(f"my {second}", key)
        verb = rng.choice(ATTRIBUTES[key].verbs)
        joint = rng.choice((" and ", ", ", ", but ", ". "))
        pattern = f"my {first} {verb}".replace("{v}", "{a}") + joint
        pattern += f"my {second} {verb}".replace("{v}", "{b}")
    else:
        from_user = rng.choice(("colour", "food", "home", "age"))
        one = next(kind for kind in KINDS if kind.key == from_user)
        two = attribute_kind(f"my {second}", from_user)
        joint = rng.choice((" and ", ", but ", ", ", ". "))
        pattern = rng.choice(one.clauses).replace("{v}", "{a}") + joint
        clause = rng.choice(two.clauses).replace("{v}", "{b}")
        if from_user in ("colour", "food") and rng.random() < 0.4:
            clause = f"my {second}'s is {{b}}"
        pattern += clause
    slots = {
        "a": style.value(one.draw(rng, held_out=False)),
        "b": style.value(two.draw(rng, held_out=False)),
    }
    said = f"{one.said.replace('{v}', '{a}')} and {two.said.replace('{v}', '{b}')}"
    user = typed(rng, style, f"{rng.choice(LEADS)} {pattern}{_tail(rng)}", slots)
    turn = exchange("told", user, reply(rng, acknowledged(rng, said), slots), Expect())
    return turn, {one.key: (one, slots["a"]), two.key: (two, slots["b"])}


def _two_named_turn(rng: random.Random, style: Style) -> tuple[Turn, Known]:
    """Make an exchange about the names of two people and an attribute of each."""
    first, second = rng.sample(PERSONS if rng.random() < 0.7 else PETS, 2)
    keys = ("home", "job", "age", "colour", "food", "hobby", "pet")
    key = rng.choice(keys if first in PERSONS else ("age", "food"))
    other = key if rng.random() < 0.7 or first not in PERSONS else rng.choice(keys)
    names = [style.value(FULL_NAME(rng, held_out=False).split()[0]) for _ in range(2)]
    known: Known = {}
    clauses: list[str] = []
    said: list[str] = []
    for who, name, attribute in zip((first, second), names, (key, other), strict=True):
        value = style.value(ATTRIBUTES[attribute].draw(rng, held_out=False))
        verb = expand_choice(rng.choice(ATTRIBUTES[attribute].verbs)).replace("{v}", value)
        clauses.append(f"my {who} {name} {verb}")
        verb = expand_choice(ATTRIBUTES[attribute].verbs[0]).replace("{v}", value)
        said.append(f"your {who} {name} {verb}")
        relation, mine_ = relation_kind(who), attribute_kind(f"my {who}", attribute)
        about = attribute_kind(name, attribute)
        known |= {relation.key: (relation, name), mine_.key: (mine_, value)}
        known[about.key] = (about, value)
    joint = rng.choice((" and ", " and ", ", ", ". ", ", but "))
    text = f"{rng.choice(LEADS)} {{text}}{_tail(rng)}"
    user = typed(rng, style, text, {"text": style.value(joint.join(clauses))})
    answer = reply(rng, acknowledged(rng, "{said}"), {"said": " and ".join(said)})
    return exchange("told", user, answer, Expect()), known


def _two_times_turn(rng: random.Random, style: Style) -> tuple[Turn, Known]:
    """Make an exchange about what the user did at two times."""
    past, base, rest, draw = rng.choice([event for event in EVENTS if "[" not in event[2]])
    times = rng.sample(("yesterday", "today", "last week", "this morning", "on Monday"), 2)
    ours = rest.replace("my ", "your ")
    ask = {"visited": "where did I go", "met": "who did I meet"}.get(past, f"what did I {base}")
    kinds = [
        Kind(
            f"event {base} {time}",
            draw,
            (f"{time} I {past} {rest}",),
            (f"{ask} {time}?", f"{time}, {ask}?"),
            (f"what I {past} {time}",),
            f"{time} you {past} {ours}",
            f"what you {past} {time}",
        )
        for time in times
    ]
    told = [style.value(draw(rng, held_out=False)) for _ in kinds]
    slots = {"a": told[0], "b": told[1]}
    one, two = (
        kind.clauses[0].replace("{v}", slot)
        for kind, slot in zip(kinds, ("{a}", "{b}"), strict=True)
    )
    user = typed(rng, style, f"{one}{rng.choice((' and ', ', ', '. ', ', but '))}{two}", slots)
    said = " and ".join(
        kind.said.replace("{v}", slot) for kind, slot in zip(kinds, ("{a}", "{b}"), strict=True)
    )
    answer = reply(rng, acknowledged(rng, said), slots)
    known = {kind.key: (kind, value) for kind, value in zip(kinds, told, strict=True)}
    return exchange("told", user, answer, Expect()), known


def tell_turn(rng: random.Random, style: Style) -> tuple[Turn, Known]:
    """Make an exchange in which the user tells something about one or two people."""
    if rng.random() < 0.06:
        return children_turn(rng, style)
    share = rng.random()
    if share < 0.16:
        return introduce_turn(rng, style)
    if share < 0.42:
        return _named_turn(rng, style)
    if share < 0.68:
        return _two_turn(rng, style)
    kind = draw_kind(rng)
    value = style.value(kind.draw(rng, held_out=False))
    clause = rng.choice(kind.clauses)
    user = typed(rng, style, f"{rng.choice(LEADS)} {clause}{_tail(rng)}", {"v": value})
    answer = reply(rng, acknowledged(rng, kind.said), {"v": value})
    return exchange("told", user, answer, Expect()), {kind.key: (kind, value)}


_WHO_IS = (
    "who is {n}?",
    "[do you know|tell me] who {n} is",
    "and {n}, who is that?",
    "who was {n} again?",
)


def who_is_turn(rng: random.Random, style: Style, known: Known) -> Turn | None:
    """Make an exchange about whose name a told name is, if the user has told one."""
    names = [
        (key.removeprefix("relation "), value)
        for key, (_, value) in known.items()
        if key.startswith("relation ")
    ]
    if not names:
        return None
    relation, name = rng.choice(names)
    user = typed(rng, style, opened(rng, rng.choice(_WHO_IS)), {"n": name})
    answer = f"{name} is your {relation}."
    return exchange("recall", user, answer, Expect(has=(has_word(relation),)))


def not_told_turn(rng: random.Random, style: Style, known: Known) -> Turn | None:
    """Make an exchange about what the user has not told of a person whom the user has mentioned."""
    people = {key.removeprefix("relation ") for key in known if key.startswith("relation ")}
    people |= {key.split(" ", 1)[1].rsplit(" ", 1)[0] for key in known if key.startswith("my ")}
    asked = [relation_kind(who) for who in people]
    asked += [
        attribute_kind(f"my {who}", key) for who in people for key in ATTRIBUTES if key != "size"
    ]
    missing = [kind for kind in asked if kind.key not in known]
    if not missing:
        return None
    names = [kind for kind in missing if kind.key.startswith("relation ")]
    return facts_not_told(
        rng, style, rng.choice(names if names and rng.random() < 0.6 else missing)
    )


_INTRODUCTIONS = (
    ("I'm {name}, {age}, from {home}", ("name", "age", "origin")),
    ("{name}, {age}, {home}", ("name", "age", "home")),
    ("I am {name}, {age} years old, and I live in {home}", ("name", "age", "home")),
    ("I'm {name} from {home} [and|,] I [work as|am] a {job}", ("name", "origin", "job")),
    ("[hi|hello|hey], I'm {name} from {home}", ("name", "origin")),
    ("{name} here, from {home}", ("name", "origin")),
    ("{name} here[, living in|. I live in|, I live in] {home}", ("name", "home")),
    ("my name is {name} and I live in {home}", ("name", "home")),
    ("my name is {name} and I am from {home}", ("name", "origin")),
    ("my name is {name}, I am {age} and I live in {home}", ("name", "age", "home")),
    ("I am a {job} from {home}", ("job", "origin")),
    ("I am a {age} year old {job} from {home}", ("age", "job", "origin")),
    ("I live in {home} and work as a {job}", ("home", "job")),
    ("I live in {home} with my {pet}", ("home", "pet")),
    ("I'm {name} and I like {colour} and {food}", ("name", "colour", "food")),
    ("I like {colour} and {food}", ("colour", "food")),
    (
        "my favourite [colour|color] is {colour} and my [favourite|fav] food is {food}",
        ("colour", "food"),
    ),
    ("I am {name}, a {job}", ("name", "job")),
    ("I'm {age} and I love {hobby}", ("age", "hobby")),
    ("I'm {name} and I love {hobby}", ("name", "hobby")),
    ("call me {name}, I'm {age}", ("name", "age")),
    ("I'm {name}, {age}, {job} from {home}", ("name", "age", "job", "origin")),
    ("{name}, {age}, {job}, {home}", ("name", "age", "job", "home")),
    ("I'm {name}, a {job} from {home}", ("name", "job", "origin")),
    ("I'm {name}, {age} years old, {job}", ("name", "age", "job")),
    ("I am a {age} year old {job} called {name}", ("age", "job", "name")),
    (
        "my name is {name}, I'm {age}, I live in {home} and I'm a {job}",
        ("name", "age", "home", "job"),
    ),
    (
        "I'm {name}, I live in {home}, I have a {pet} and I like {hobby}",
        ("name", "home", "pet", "hobby"),
    ),
    ("my name is not {other}, it's {name}", ("name",)),
    ("I'm not {other}, I'm {name}", ("name",)),
    ("I don't live in {other}, I live in {home}", ("home",)),
    ("I am {name} and this is my first time here", ("name",)),
)


def introduce_turn(rng: random.Random, style: Style) -> tuple[Turn, Known]:
    """Make an exchange in which the user tells two or three facts in one short sentence."""
    pattern, keys = rng.choice(_INTRODUCTIONS)
    kinds = {kind.key: kind for kind in KINDS}
    known = {key: (kinds[key], style.value(kinds[key].draw(rng, held_out=False))) for key in keys}
    slots = {("home" if key == "origin" else key): value for key, (_, value) in known.items()}
    slots["other"] = style.value(FULL_NAME(rng, held_out=False).split()[0])
    user = typed(rng, style, f"{rng.choice(LEADS)} {pattern}{_tail(rng)}", slots)
    said = [kind.said.replace("{v}", value) for kind, value in known.values()]
    joined = said[0] if len(said) == 1 else ", ".join(said[:-1]) + " and " + said[-1]
    answer = reply(rng, acknowledged(rng, "{said}"), {"said": joined})
    return exchange("told", user, answer, Expect()), known
