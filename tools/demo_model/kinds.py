"""Kinds of facts beyond the plain ones about the user: events, dates, places, words to remember."""

import random

from tools.demo_model import values
from tools.demo_model.facts import FULL_NAME, Draw, Kind, numbers, pool

CITY = pool(values.CITIES, 0.5, proper=True)
COLOUR = pool(values.COLOURS, 0.3)
PERSONS = values.listed("""
sister, brother, mother, father, son, daughter, wife, husband, aunt, uncle, cousin, boss, teacher,
neighbour, doctor, friend, grandmother, grandfather, nephew, niece, colleague, roommate,
best friend, girlfriend, boyfriend, mum, dad, mom
""")
PETS = values.listed("dog, cat, hamster, rabbit, horse, parrot, goldfish, turtle, puppy, kitten")
PLURALS = values.listed("""
brothers, sisters, cats, dogs, children, kids, sons, daughters, parents, friends, cousins, hamsters,
rabbits, best friends, colleagues, neighbours, horses, grandparents
""")


_DAYS = (
    "in {month}",
    "on {month} {day}",
    "{month} {day}",
    "{month} {day}th",
    "the {day}th of {month}",
    "on the {day}th of {month}",
    "{day} {month}",
    "{day}.{number}.",
    "today",
    "tomorrow",
    "next week",
    "on {weekday}",
)


def _day(rng: random.Random, *, held_out: bool) -> str:
    del held_out
    return rng.choice(_DAYS).format(
        month=rng.choice(values.MONTHS),
        day=rng.randint(4, 30),
        number=rng.randint(1, 12),
        weekday=rng.choice(_WEEKDAYS),
    )


def birthday_kind(subject: str) -> Kind:
    """Return the Kind for the birthday of a person, such as "my brother" or a name."""
    ours = "your" + subject[2:] if subject.startswith("my ") else subject
    return Kind(
        f"{subject} birthday",
        _day,
        (
            f"{subject}'s birthday is {{v}}",
            f"{subject} has birthday {{v}}",
            f"the birthday of {subject} is {{v}}",
            f"it is {subject}'s birthday {{v}}",
        ),
        (
            f"when is {subject}'s birthday?",
            f"when does {subject} have birthday?",
            f"when is the birthday of {subject}?",
            f"what day is {subject}'s birthday?",
        ),
        (f"when {subject}'s birthday is", f"{subject}'s birthday"),
        f"{ours}'s birthday is {{v}}",
        f"when {ours}'s birthday is",
    )


_WORD_SORTS = ("word", "number", "code", "name", "sentence", "colour", "password", "city", "date")


def word_kind(rng: random.Random) -> Kind:
    """Draw the Kind for a word, a number or the like that the user wants the model to remember."""
    sort = rng.choice(("word", "word", "number", "number", *_WORD_SORTS))
    draws = {"number": numbers(2, 9999), "code": numbers(100, 99_999), "date": _day}
    proper = sort in ("name", "city")
    draw = draws.get(sort, pool(values.CITIES if proper else values.NOUNS, 0.6, proper=proper))
    if sort == "colour":
        draw = COLOUR
    if sort == "sentence":
        draw = _sentence
    this = "[please|] [remember|memorise|keep in mind|don't forget]"
    return Kind(
        f"word {sort}",
        draw,
        (
            f"{this} the {sort} {{v}}",
            f"{this} the {sort} {{v}}",
            f"{this} this {sort}: {{v}}",
            "[please|] remember: {v}" if sort in ("word", "number") else f"the {sort} is {{v}}",
            f"the {sort} is {{v}}",
            f"I will tell you a {sort}: {{v}}",
        ),
        (
            f"what was the {sort} [again|]?",
            f"what is the {sort}?",
            f"[which|what] {sort} did I tell you?",
            f"[which|what] {sort} [should|did] you remember?",
            f"do you remember the {sort}?",
            f"tell me the {sort}",
            f"the {sort}?",
        ),
        (f"the {sort}", f"what the {sort} was"),
        f"the {sort} is {{v}}",
        f"the {sort}",
    )


def _sentence(rng: random.Random, *, held_out: bool) -> str:
    del held_out
    words = (values.choose(rng, values.NOUNS, held_out=False) for _ in range(2))
    adjective = values.choose(rng, values.ADJECTIVES, held_out=False)
    first, second = words
    return f"the {first} is {adjective} and the {second} too"


_PUT = values.listed("""
keys, car, phone, bag, wallet, glasses, book, bike, umbrella, passport, hat, coat, money, laptop,
lunch, ticket, shoes, ring, camera, bicycle, suitcase, watch, letter, medicine
""")
_SPOTS = values.listed("""
drawer, kitchen, car, garage, bedroom, box, cupboard, fridge, office, garden, hall, bathroom, bag,
basement, attic, train, shop, pocket, shelf, park
""")


def _spot(rng: random.Random, *, held_out: bool) -> str:
    where = rng.choice((rng.choice(_SPOTS), values.choose(rng, values.NOUNS, held_out=held_out)))
    return rng.choice(
        (
            f"in the {where}",
            f"in the {where}",
            f"under the {where}",
            f"on the {where}",
            f"behind the {where}",
            f"next to the {where}",
            f"at the {where}",
            f"on level {rng.randint(1, 9)}",
            f"in row {rng.randint(1, 40)}",
            f"in {values.choose(rng, values.CITIES, held_out=held_out)}",
            "at home",
            "at work",
        )
    )


def place_kind(rng: random.Random) -> Kind:
    """Draw the Kind for where the user has put something."""
    what = rng.choice(_PUT)
    past, base = rng.choice((("put", "put"), ("left", "leave"), ("hid", "hide")))
    if what in ("car", "bike", "bicycle"):
        past, base = "parked", "park"
    be = "are" if what in ("keys", "glasses", "shoes") else "is"
    return Kind(
        f"place {what}",
        _spot,
        (
            f"I {past} my {what} {{v}}",
            f"I {past} the {what} {{v}}",
            f"my {what} {be} {{v}}",
            f"I have {'hidden' if past == 'hid' else past} my {what} {{v}}",
        ),
        (
            f"where did I {base} my {what}?",
            f"where did I {base} the {what}?",
            f"where {be} my {what}?",
            f"where {be} the {what}?",
        ),
        (f"where my {what} {be}", f"where I {past} my {what}"),
        f"your {what} {be} {{v}}",
        f"where your {what} {be}",
    )


_TRAITS = values.listed("""
vegetarian, vegan, left-handed, colour-blind, diabetic, married, divorced, retired, a twin, an only
child, tall, short, shy, deaf, blind, single, pregnant, a morning person, a night owl, unemployed,
a grandfather, a mother of three, rich, very old, right-handed, engaged, new here, Irish, German,
American, Swedish, Canadian, a beginner, a big fan of jazz, a father
""")


def trait_kind(rng: random.Random) -> Kind:
    """Draw the Kind for something else that the user is, does or has, such as "vegetarian"."""
    form = rng.randrange(6)
    likes = pool([f"{noun}s" for noun in values.NOUNS if noun[-1] not in "syx"], 0.2)
    likes = likes if rng.random() < 0.5 else pool(values.FOODS, 0.2)
    match form:
        case 0 | 1:
            said, ask, what = "you are {v}", "what am I?", "what you are"
            clauses, draw = ("I am {v}", "I'm {v}", "I am actually {v}"), pool(_TRAITS, 0.0)
            asks = (ask, "what did I say I am?", "what did I say about myself?")
        case 2:
            said, what = "you like {v}", "what you like"
            clauses, draw = ("I like {v}", "I really like {v}", "I love {v}"), likes
            asks = ("what do I like?", "what do I love?", "what did I say I like?")
        case 3:
            said, what = "you do not like {v}", "what you do not like"
            clauses = ("I don't like {v}", "I do not like {v}", "I can't stand {v}")
            draw, asks = likes, ("what don't I like?", "what do I not like?")
        case 4:
            said, what = "you were born in {v}", "when you were born"
            clauses, draw = ("I was born in {v}", "my year of birth is {v}"), numbers(1930, 2015)
            asks = ("when was I born?", "what year was I born [in|]?", "which year was I born?")
        case _:
            said, what = "you are {v} tall", "how tall you are"
            clauses, draw = ("I am {v} tall", "I'm {v} tall"), _height
            asks = ("how tall am I?", "what is my height?")
    mine_ = what.replace("you are", "I am").replace("you were", "I was").replace("you ", "I ")
    return Kind(f"trait {form}", draw, clauses, asks, (mine_,), said, what)


def _height(rng: random.Random, *, held_out: bool) -> str:
    del held_out
    number = rng.randint(140, 205)
    feet = f"{rng.randint(4, 6)} foot {rng.randint(1, 11)}"
    return rng.choice((f"{number} cm", f"{number} cm", f"1.{number - 100} m", feet))


def meeting_kind(rng: random.Random) -> Kind:
    """Draw the Kind for with whom and when the user has a meeting or the like."""
    what = rng.choice(values.listed("meeting, appointment, date, call, lunch, interview, lesson"))

    def moment(rng: random.Random, *, held_out: bool) -> str:
        who = rng.choice((FULL_NAME(rng, held_out=held_out), f"my {rng.choice(PERSONS)}"))
        parts = [f"with {who}", _moment(rng, held_out=held_out)]
        return " ".join(parts if rng.random() < 0.6 else parts[::-1])

    article = "an" if what[0] in "aeiou" else "a"
    return Kind(
        f"meeting {what}",
        moment,
        (f"I have {article} {what} {{v}}", f"I've got {article} {what} {{v}}", f"{what} {{v}}"),
        (
            f"when is my {what}?",
            f"when is the {what}?",
            f"who is my {what} with?",
            f"with whom do I have {article} {what}?",
            "who am I meeting?",
            f"what time is my {what}?",
            f"who do I have {article} {what} with?",
        ),
        (f"when my {what} is", f"who my {what} is with", f"about my {what}"),
        f"you have {article} {what} {{v}}",
        f"about your {what}",
    )


def _birthday(rng: random.Random) -> Kind:
    name = FULL_NAME(rng, held_out=False).split()[0]
    return birthday_kind(rng.choice((name, f"my {rng.choice(PERSONS)}", f"my {rng.choice(PETS)}")))


_NOUN = pool(values.NOUNS, 0.25)
EVENTS: tuple[tuple[str, str, str, Draw], ...] = (
    # (past, base form, what follows, values)
    ("bought", "buy", "a {v}", _NOUN),
    ("found", "find", "a {v}", _NOUN),
    ("lost", "lose", "my {v}", _NOUN),
    ("saw", "see", "a {v}", pool(values.ANIMALS, 0.2)),
    ("ate", "eat", "{v}", pool(values.FOODS, 0.2)),
    ("cooked", "cook", "{v}", pool(values.FOODS, 0.2)),
    ("had", "have", "{v} for [lunch|dinner|breakfast]", pool(values.FOODS, 0.2)),
    ("visited", "visit", "{v}", CITY),
    ("met", "meet", "{v}", FULL_NAME),
    ("broke", "break", "a {v}", _NOUN),
    ("painted", "paint", "a {v}", _NOUN),
    ("drank", "drink", "{v}", pool(values.DRINKS, 0.2)),
)
_MEALS = ("lunch", "dinner", "breakfast")


def event_kind(rng: random.Random) -> Kind:
    """Draw the Kind for something that the user has done, such as "I bought a lamp yesterday"."""
    past, base, rest, draw = rng.choice(EVENTS)
    when = rng.choice(("", "yesterday", "today", "last week", "this morning"))
    if rest.startswith("{v} for"):
        meal = rng.choice(_MEALS)
        rest, when = f"{{v}} for {meal}", ""
        asks = (
            f"what did I have for {meal}?",
            f"what was my {meal}?",
            f"what did I eat for {meal}?",
        )
    else:
        word = "where did I go" if past == "visited" else f"what did I {base}"
        word = "who did I meet" if past == "met" else word
        asks = (f"{word} [{when}|]?", f"{word} {when}?")
        if past == "visited":
            asks = (*asks, f"[which|what] city did I visit [{when}|]?")
    ours = rest.replace("my ", "your ")
    return Kind(
        f"event {base}",
        draw,
        (f"I {past} {rest} {when}", f"{when} I {past} {rest}", f"I {past} {rest} [{when}|]"),
        asks,
        (f"what I {past}",) if past not in ("met", "visited") else (f"who I {past}",),
        f"you {past} {ours}",
        f"what you {past}",
    )


_DATES = values.listed("""
meeting, train, flight, exam, appointment, lesson, party, bus, wedding, interview, test, concert,
doctor's appointment, holiday, date, class, call, game, lunch break, driving test
""")


_WEEKDAYS = values.listed("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")


def _moment(rng: random.Random, *, held_out: bool) -> str:
    del held_out
    day = rng.choice(_WEEKDAYS)
    hour = rng.randint(1, 12)
    return rng.choice(
        (
            f"at {hour}",
            f"at {hour} o'clock",
            f"at {hour} {rng.choice(('am', 'pm'))}",
            f"at {rng.randint(0, 23)}:{rng.randint(0, 59):02}",
            f"on {day}",
            f"on {day} at {hour}",
            "tomorrow",
            "next week",
            f"in {rng.choice(values.MONTHS)}",
            f"at {rng.choice(('noon', 'midnight', 'half past two', 'quarter to nine'))}",
        )
    )


def date_kind(what: str) -> Kind:
    """Return the Kind for the time of the user's meeting, train or the like."""
    return Kind(
        f"date {what}",
        _moment,
        (f"my {what} is {{v}}", f"I have a {what} {{v}}", f"the {what} is {{v}}"),
        (
            f"when is my {what}?",
            f"what time is my {what}?",
            f"when do I have my {what}?",
            f"when is the {what}?",
        ),
        (f"when my {what} is", f"the time of my {what}"),
        f"your {what} is {{v}}",
        f"when your {what} is",
    )


def _amount(rng: random.Random, *, held_out: bool) -> str:
    del held_out
    number = rng.randint(2, 12)
    words = values.listed("two, three, four, five, six, seven, eight, nine, ten, eleven, twelve")
    return rng.choice((str(number), words[number - 2], str(rng.randint(2, 99))))


def amount_kind(plural: str) -> Kind:
    """Return the Kind for how many cats, or the like, the user has."""
    return Kind(
        f"amount {plural}",
        _amount,
        (f"I have {{v}} {plural}", f"I own {{v}} {plural}", f"I've got {{v}} {plural}"),
        (f"how many {plural} do I have?", f"how many {plural} have I got?", f"how many {plural}?"),
        (f"how many {plural} I have",),
        f"you have {{v}} {plural}",
        f"how many {plural} you have",
    )


_FEELINGS = (
    ("am allergic to", "what am I allergic to?", "what I am allergic to", "are allergic to"),
    ("am afraid of", "what am I afraid of?", "what I am afraid of", "are afraid of"),
    ("hate", "what do I hate?", "what I hate", "hate"),
    ("dream of", "what do I dream of?", "what I dream of", "dream of"),
    ("collect", "what do I collect?", "what I collect", "collect"),
    ("study", "what do I study?", "what I study", "study"),
    ("drive", "what do I drive?", "what I drive", "drive"),
)


def feeling_kind(rng: random.Random) -> Kind:
    """Draw the Kind for what the user hates, is afraid of or the like."""
    verb, ask, indirect, ours = rng.choice(_FEELINGS)
    draw = pool([f"{noun}s" for noun in values.NOUNS if noun[-1] not in "syx"], 0.2)
    if verb == "study":
        draw = pool(values.listed("history, law, music, physics, art, maths, biology, French"), 0.3)
    if verb == "drive":
        verb, ours = "drive a", "drive a"
        draw = pool(values.listed("truck, bus, Ford, red car, taxi, van, Volvo, tractor"), 0.4)
    return Kind(
        f"feeling {verb}",
        draw,
        (
            f"I {verb} {{v}}",
            f"I really {verb} {{v}}" if not verb.startswith("am") else f"I {verb} {{v}}",
        ),
        (ask,),
        (indirect,),
        f"you {ours} {{v}}",
        indirect.replace(" I am ", " you are ").replace(" I ", " you "),
    )


def draw_further_kind(rng: random.Random) -> Kind:
    """Draw one of these kinds."""
    share = rng.random()
    if share < 0.6:
        return rng.choice((word_kind, place_kind, trait_kind, meeting_kind, _birthday))(rng)
    if share < 0.77:
        return event_kind(rng)
    if share < 0.86:
        return date_kind(rng.choice(_DATES))
    if share < 0.93:
        return amount_kind(
            rng.choice(PLURALS) if rng.random() < 0.6 else f"{rng.choice(values.ANIMALS)}s"
        )
    return feeling_kind(rng)
