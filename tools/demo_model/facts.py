"""Turns in which the user states facts about themselves or asks the model for them."""

import random
from dataclasses import dataclass
from typing import Protocol

from tools.demo_model import values
from tools.demo_model.grammar import Style, capital, opened, reply, typed
from tools.demo_model.turns import Expect, Turn, exchange, has_word


class Draw(Protocol):
    """Function that draws a training value or, if `held_out`, a held-out value."""

    def __call__(self, rng: random.Random, *, held_out: bool) -> str: ...


@dataclass(frozen=True)
class Kind:
    """A kind of fact about the user, such as the name, with patterns of sentences about it.

    ``clauses`` state the fact and can be joined by "and". ``direct`` and ``indirect`` are direct
    and indirect questions about it. ``said`` is the model's clause, as in "your name is {v}".
    ``unknown`` names the fact in the model's answer when the user has never stated it. ``draw``
    draws a value of the fact.
    """

    key: str
    draw: Draw
    clauses: tuple[str, ...]
    direct: tuple[str, ...]
    indirect: tuple[str, ...]
    said: str
    unknown: str


def pool(items: list[str], invented: float = 0.5, *, proper: bool = False) -> Draw:
    def draw(rng: random.Random, *, held_out: bool) -> str:
        if rng.random() >= invented:
            return values.choose(rng, items, held_out=held_out)
        word = values.invent(rng, held_out=held_out)
        return word.capitalize() if proper else word

    return draw


def numbers(low: int, high: int) -> Draw:
    def draw(rng: random.Random, *, held_out: bool) -> str:
        return values.number(rng, low, high, held_out=held_out)

    return draw


def _full_name(rng: random.Random, *, held_out: bool) -> str:
    first = pool(values.NAMES, 0.6, proper=True)(rng, held_out=held_out)
    if rng.random() < 0.85:
        return first
    return f"{first} {values.invent(rng, held_out=held_out).capitalize()}"


def _code(rng: random.Random, *, held_out: bool) -> str:
    form = rng.randrange(4)
    if form == 0:
        return values.number(rng, 100, 99_999, held_out=held_out)
    if form == 1:
        word = values.invent(rng, held_out=held_out)
        return f"{word}-{values.number(rng, 1, 99, held_out=held_out)}"
    if form == 2:
        adjective = values.choose(rng, values.ADJECTIVES, held_out=held_out)
        return f"{adjective} {values.invent(rng, held_out=held_out)}"
    return values.invent(rng, held_out=held_out)


FULL_NAME: Draw = _full_name
_CITY = pool(values.CITIES, 0.5, proper=True)

KINDS = (
    Kind(
        "name",
        FULL_NAME,
        (
            "my name is {v}",
            "I go by {v}",
            "you are talking to {v}",
            "name: {v}",
            "{v} is what they call me",
            "the name's {v}",
            "my full name is {v}",
            "people know me as {v}",
            "it's {v}",
            "my name = {v}",
            "here is my name: {v}",
            "I have the name {v}",
            "my name's {v}",
            "I am {v}",
            "I'm {v}",
            "I am called {v}",
            "they call me {v}",
            "[you can|please|] call me {v}",
            "everyone calls me {v}",
            "my first name is {v}",
            "people call me {v}",
            "the name is {v}",
            "this is {v}",
        ),
        (
            "what is my [first|] name?",
            "say my name",
            "what was my name [again|]?",
            "who is talking to you?",
            "by what name do I go?",
            "did you get my name?",
            "what do people call me?",
            "name me",
            "what name do I have?",
            "what's my name?",
            "who am I?",
            "what am I called?",
            "how am I called?",
            "do you know who I am?",
            "which name did I give you?",
            "my name?",
            "what name did I [give|tell] you?",
        ),
        ("my name", "what my name is", "who I am", "what I am called", "my first name"),
        "your name is {v}",
        "your name",
    ),
    Kind(
        "home",
        _CITY,
        (
            "I live in {v}",
            "I have lived in {v} [for years|all my life]",
            "these days I live in {v}",
            "{v} is where I live",
            "{v} is my home",
            "I stay in {v}",
            "my flat is in {v}",
            "I settled in {v}",
            "city: {v}",
            "my city is {v}",
            "my [address|house] is in {v}",
            "I am living in {v}",
            "my home is in {v}",
            "I live [near|in] {v}",
            "I moved to {v} [last year|]",
            "my home town is {v}",
            "I reside in {v}",
            "I'm based in {v}",
            "home for me is {v}",
            "the city I live in is {v}",
        ),
        (
            "where do I live?",
            "what town do I call home?",
            "where can you find me?",
            "where is my [flat|house]?",
            "what was my city [again|]?",
            "which place do I live in?",
            "[which|what] [city|town|place] do I live in?",
            "where is my home?",
            "where am I living?",
            "where did I say I live?",
            "in which [city|town] do I live?",
            "[which|what] is my [home town|city]?",
            "where am I based?",
        ),
        ("where I live", "[which|what] [city|town] I live in", "where my home is", "my city"),
        "you live in {v}",
        "where you live",
    ),
    Kind(
        "origin",
        _CITY,
        (
            "I am from {v}",
            "{v} is where I come from",
            "originally I am from {v}",
            "my birthplace is {v}",
            "I hail from {v}",
            "I come from {v}",
            "I was born in {v}",
            "I'm originally from {v}",
            "I grew up in {v}",
        ),
        (
            "where am I from?",
            "what is my birthplace?",
            "where do I hail from?",
            "where do I come from?",
            "where was I born?",
            "[which|what] [city|place] am I from?",
            "where did I grow up?",
        ),
        ("where I am from", "where I come from", "where I was born"),
        "you are from {v}",
        "where you are from",
    ),
    Kind(
        "age",
        numbers(5, 99),
        (
            "I am {v} years old",
            "my age: {v}",
            "I am a {v} year old",
            "{v} years old, that is me",
            "I reached the age of {v}",
            "my age is now {v}",
            "age {v}",
            "I'm {v} years old",
            "I am {v} [|years of age]",
            "my age is {v}",
            "I just turned {v}",
            "I turned {v} [today|last week|]",
            "I'm {v}",
        ),
        (
            "how old am I?",
            "what was my age [again|]?",
            "can you say how old I am?",
            "what is my age?",
            "what age am I?",
            "how many years old am I?",
        ),
        ("how old I am", "my age", "what my age is"),
        "you are {v} years old",
        "how old you are",
    ),
    Kind(
        "job",
        pool(values.JOBS, 0.4),
        (
            "I work as a {v}",
            "I make my living as a {v}",
            "I trained as a {v}",
            "I have a job as a {v}",
            "job: {v}",
            "for a living I am a {v}",
            "my occupation is {v}",
            "I am employed as a {v}",
            "I am a {v}",
            "I'm a {v} [by trade|]",
            "my job is {v}",
            "I work as {v}",
            "by profession I am a {v}",
            "I earn my living as a {v}",
            "my profession is {v}",
        ),
        (
            "what is my job?",
            "which job do I have?",
            "how do I earn my living?",
            "what am I by profession?",
            "what kind of work do I do?",
            "what do I do [for a living|for work|]?",
            "what do I work as?",
            "what is my [profession|work|occupation]?",
            "what job do I have?",
        ),
        (
            "my job",
            "what my job is",
            "what I do [for a living|]",
            "what I work as",
            "my profession",
        ),
        "you work as a {v}",
        "your job",
    ),
    Kind(
        "colour",
        pool(values.COLOURS, 0.4),
        (
            "my [favourite|favorite] [colour|color] is {v}",
            "of all [colours|colors] I like {v} best",
            "{v} is the [colour|color] I love",
            "no [colour|color] is nicer than {v}",
            "my top [colour|color] is {v}",
            "[favourite|favorite] [colour|color]: {v}",
            "I prefer the [colour|color] {v}",
            "the [colour|color] I like [best|most] is {v}",
            "I like the [colour|color] {v} [best|most|]",
            "{v} is my [favourite|favorite] [colour|color]",
            "I love the [colour|color] {v}",
        ),
        (
            "what is my [favourite|favorite] [colour|color]?",
            "what [colour|color] is my [favourite|favorite]?",
            "which is the [colour|color] I like?",
            "what [colour|color] did I say?",
            "[which|what] [colour|color] do I [like|love|prefer] [best|most|]?",
            "what's my [favourite|favorite] [colour|color]?",
        ),
        (
            "my [favourite|favorite] [colour|color]",
            "what my [favourite|favorite] [colour|color] is",
            "which [colour|color] I like [best|]",
        ),
        "your favourite colour is {v}",
        "your favourite colour",
    ),
    Kind(
        "food",
        pool(values.FOODS, 0.4),
        (
            "my [favourite|favorite] [food|dish|meal] is {v}",
            "I am crazy about {v}",
            "{v} tastes best to me",
            "for dinner I love {v}",
            "my [favourite|favorite] thing to eat is {v}",
            "I adore {v}",
            "[favourite|favorite] food: {v}",
            "I love eating {v}",
            "I like to eat {v}",
            "the food I like [best|most] is {v}",
            "{v} is my [favourite|favorite] [food|dish]",
            "I eat {v} every day",
            "I really like {v}",
        ),
        (
            "what is my [favourite|favorite] [food|dish|meal]?",
            "what is my [favourite|favorite] thing to eat?",
            "what do I love for dinner?",
            "which meal is my [favourite|favorite]?",
            "what food is my [favourite|favorite]?",
            "what do I [like|love] to eat?",
            "[which|what] food do I [like|love] [best|most|]?",
            "what do I eat [every day|]?",
        ),
        ("my [favourite|favorite] [food|dish]", "what I like to eat", "which food I like"),
        "your favourite food is {v}",
        "your favourite food",
    ),
    Kind(
        "drink",
        pool(values.DRINKS, 0.4),
        (
            "my [favourite|favorite] drink is {v}",
            "I drink {v} all day",
            "{v} is what I drink",
            "my drink of choice is {v}",
            "I prefer to drink {v}",
            "I like to drink {v}",
            "I [always|mostly] drink {v}",
            "I love drinking {v}",
        ),
        (
            "what is my [favourite|favorite] drink?",
            "which drink do I like?",
            "what do I drink all day?",
            "what do I [like to|always|] drink?",
        ),
        ("my [favourite|favorite] drink", "what I like to drink", "what I drink"),
        "your favourite drink is {v}",
        "your favourite drink",
    ),
    Kind(
        "hobby",
        pool(values.HOBBIES, 0.4),
        (
            "my hobby is {v}",
            "my main hobby is {v}",
            "{v} is my hobby",
            "when I have time I do {v}",
            "my [favourite|favorite] pastime is {v}",
            "at weekends I do {v}",
            "I love {v}",
            "hobby: {v}",
            "my [favourite|favorite] hobby is {v}",
            "I enjoy {v}",
            "I am into {v}",
            "in my free time I like {v}",
            "I spend my weekends on {v}",
            "for fun I do {v}",
        ),
        (
            "what is my [favourite|favorite|] hobby?",
            "what is my pastime?",
            "how do I spend my free time?",
            "what do I do at weekends?",
            "what do I love doing?",
            "what do I [like to do|do|enjoy] in my free time?",
            "what do I enjoy?",
            "what do I do for fun?",
            "which hobby do I have?",
        ),
        ("my hobby", "what my hobby is", "what I enjoy", "what I do for fun"),
        "your hobby is {v}",
        "your hobby",
    ),
    Kind(
        "pet",
        pool(values.ANIMALS, 0.4),
        (
            "I have a {v}",
            "I live with a {v}",
            "we have a {v} at home",
            "a {v} lives with me",
            "I adopted a {v}",
            "my family has a {v}",
            "pet: {v}",
            "my pet is a {v}",
            "I have a pet {v}",
            "I've got a {v}",
            "I own a {v}",
            "I keep a {v} [as a pet|]",
            "there is a {v} at my place",
        ),
        (
            "what pet do I have?",
            "what animal lives with me?",
            "what sort of animal is my pet?",
            "which animal did I adopt?",
            "what [kind of|] [pet|animal] do I [have|own|keep]?",
            "which pet do I have?",
            "what is my pet?",
            "do you know what pet I have?",
        ),
        ("what pet I have", "which animal I have", "what kind of pet I have"),
        "you have a {v}",
        "what pet you have",
    ),
    Kind(
        "instrument",
        pool(values.INSTRUMENTS, 0.4),
        (
            "I play the {v}",
            "I am learning the {v}",
            "my instrument is the {v}",
            "I can play the {v}",
        ),
        (
            "what instrument do I play?",
            "which instrument [do I play|am I learning]?",
            "what do I play?",
        ),
        ("which instrument I play", "what instrument I play"),
        "you play the {v}",
        "which instrument you play",
    ),
    Kind(
        "language",
        pool(values.LANGUAGES, 0.3, proper=True),
        ("I speak {v}", "my mother tongue is {v}", "I am learning {v}", "my language is {v}"),
        ("what language do I speak?", "which language do I [speak|know]?", "what is my language?"),
        ("which language I speak", "my language"),
        "you speak {v}",
        "which language you speak",
    ),
    Kind(
        "birthday",
        pool(values.MONTHS, 0.0, proper=True),
        ("my birthday is in {v}", "I was born in the month of {v}", "I have my birthday in {v}"),
        ("when is my birthday?", "in which month is my birthday?", "what month is my birthday in?"),
        ("when my birthday is", "the month of my birthday"),
        "your birthday is in {v}",
        "when your birthday is",
    ),
    Kind(
        "firm",
        pool(values.NAMES, 0.9, proper=True),
        ("I work at {v}", "I work for {v}", "my company is called {v}", "my employer is {v}"),
        (
            "where do I work?",
            "who do I work for?",
            "what company do I work for?",
            "what is my company called?",
        ),
        ("where I work", "who I work for"),
        "you work for {v}",
        "where you work",
    ),
)

RELATIONS = values.listed("""
dog, cat, parrot, hamster, horse, rabbit, goldfish, turtle, sister, brother, mother, father,
son, daughter, wife, husband, aunt, uncle, cousin, boss, teacher, neighbour, doctor, dentist,
friend, boat, car, house, school, team, band, street, village, bicycle, robot, grandmother,
grandfather, nephew, niece, colleague, roommate, plumber, coach, pony, snake, puppy, kitten
""")

_THINGS = values.listed("""
lucky number, locker code, password, code word, secret word, room number, door code, phone
number, order number, house number, shoe size, seat number, flight number, pin, username,
membership number, bus line, ticket number, safe word, magic word, wifi password
""")
_FAVOURITES = values.listed("""
animal, book, film, movie, song, band, singer, sport, season, game, number, fruit, flower, word,
subject, country, city, tree, toy, writer, dessert, vegetable, teacher, holiday, day, place,
shop, show, bird, planet, car, month, ice cream, cheese, team
""")


def relation_kind(relation: str) -> Kind:
    """Return the Kind for the name of the user's `relation`, a person, animal or object such as
    "sister", "dog" or "boat". Its sentences have the form "my dog is called VALUE"."""
    return Kind(
        f"relation {relation}",
        FULL_NAME,
        (
            f"my {relation} is called {{v}}",
            f"my {relation} is {{v}}",
            f"I call my {relation} {{v}}",
            f"my {relation} has the name {{v}}",
            f"{{v}} is the name of my {relation}",
            f"our {relation} is called {{v}}",
            f"I named my {relation} {{v}}",
            f"my {relation}: {{v}}",
            f"my {relation}'s name is {{v}}",
            f"I have a {relation} called {{v}}",
            f"I have a {relation} named {{v}}",
            f"the name of my {relation} is {{v}}",
            f"my {relation} is named {{v}}",
            f"my {relation} goes by {{v}}",
            f"{{v}} is my {relation}",
        ),
        (
            f"what is my {relation} called?",
            f"how do I call my {relation}?",
            f"what did I name my {relation}?",
            f"my {relation}'s name?",
            f"what was my {relation}'s name [again|]?",
            f"what name did I give my {relation}?",
            f"what do I call my {relation}?",
            f"what is my {relation}'s name?",
            f"what is the name of my {relation}?",
            f"what's my {relation}'s name?",
            f"what is my {relation} named?",
            f"who is my {relation}?",
            f"[what|which] name does my {relation} have?",
            f"how is my {relation} called?",
        ),
        (
            f"my {relation}'s name",
            f"what my {relation} is called",
            f"the name of my {relation}",
            f"what my {relation}'s name is",
        ),
        f"your {relation} is called {{v}}",
        f"what your {relation} is called",
    )


def thing_kind(thing: str, draw: Draw) -> Kind:
    """Return the Kind for the value of the user's `thing`, such as "locker code" or "favourite
    animal". Its sentences have the form "my locker code is VALUE". `draw` draws the values."""
    return Kind(
        f"thing {thing}",
        draw,
        (
            f"my {thing} is {{v}}",
            f"{{v}} is my {thing}",
            f"the {thing} I have is {{v}}",
            f"I have {{v}} as my {thing}",
            f"my {thing}: {{v}}",
            f"my {thing} = {{v}}",
            f"the {thing} is {{v}}",
            f"for my {thing} I [chose|picked] {{v}}",
            f"as {thing} I [took|have|picked] {{v}}",
            f"{{v}} is the {thing}",
            f"the {thing} I [like|use|want] [best|most|] is {{v}}",
        ),
        (
            f"what is my {thing}?",
            f"what's my {thing}?",
            f"which {thing} do I have?",
            f"what {thing} did I tell you?",
            f"my {thing}?",
            f"what was my {thing} [again|]?",
            f"what is the {thing}?",
            f"which {thing} did I [choose|pick|mention|tell you]?",
            f"which {thing} do I [like|use] [best|most|]?",
            f"what is the {thing} I told you?",
        ),
        (f"my {thing}", f"what my {thing} is", f"the {thing}", f"which {thing} I have"),
        f"your {thing} is {{v}}",
        f"your {thing}",
    )


def _any_value(rng: random.Random, *, held_out: bool) -> str:
    """Draw a value of any form, for things whose values have no typical form."""
    form = rng.randrange(5)
    if form == 0:
        return values.invent(rng, held_out=held_out).capitalize()
    if form == 1:
        return values.choose(rng, values.NOUNS, held_out=held_out)
    if form == 2:
        adjective = values.choose(rng, values.ADJECTIVES, held_out=held_out)
        return f"{adjective} {values.invent(rng, held_out=held_out)}"
    if form == 3:
        first, second = (values.invent(rng, held_out=held_out).capitalize() for _ in range(2))
        return f"The {first} {second}" if rng.random() < 0.5 else f"{first} {second}"
    return values.invent(rng, held_out=held_out)


def draw_kind(rng: random.Random, *, held_out: bool) -> Kind:
    """Draw a kind of fact: in half of all cases one of KINDS, else a relation (`relation_kind`) or
    a thing (`thing_kind`), at times a thing with an invented name."""
    share = rng.random()
    if share < 0.5:
        return rng.choice(KINDS)
    if share < 0.72:
        return relation_kind(rng.choice(RELATIONS))
    if share < 0.86:
        noun = rng.choice(_FAVOURITES)
        spelling = rng.choice(("favourite", "favourite", "favorite", "best"))
        return thing_kind(f"{spelling} {noun}", _any_value)
    if share < 0.95:
        return thing_kind(rng.choice(_THINGS), _code)
    return thing_kind(values.invent(rng, held_out=held_out), _any_value)


LEADS = (
    "first of all,",
    "one more thing:",
    "also,",
    "and",
    "something about me:",
    "listen,",
    "actually,",
    "here is a fact:",
    "let me introduce myself:",
    "as for me,",
    "[hi|hello]!",
    "",
    "",
    "",
    "",
    "",
    "",
    "[hi|hello|hey],",
    "[hi|hello|hey],",
    "by the way,",
    "oh,",
    "well,",
    "[please|] remember [that|this:]",
    "remember:",
    "just so you know,",
    "for the record,",
    "[good morning|nice to meet you|ok|okay|so|yes|right|sure],",
    "you should know that",
    "I want you to know that",
    "note that",
    "let me tell you something:",
    "a fact about me:",
    "I forgot to say,",
    "did you know that",
    "keep in mind that",
    "please note:",
)
TAILS = (
    "I hope you remember [that|it]",
    "that is all",
    "can you remember [that|it]?",
    "got it?",
    "thanks",
    "so now you know",
    "will you remember [that|it]?",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "[please|] remember [that|this|it] [please|]",
    "[please|] keep [that|this] in mind",
    "[please|] [do not|don't] forget [that|it|this]",
    "nice to meet you",
    "just so you know",
    "[and you|what about you]?",
    "okay?",
)


def tell_turn(rng: random.Random, style: Style, kinds: list[Kind], *, held_out: bool) -> Turn:
    """Make an exchange in which the user states facts of these kinds in one message.

    The model confirms, mostly by repeating the facts.
    """
    told = {kind.key: style.value(kind.draw(rng, held_out=held_out)) for kind in kinds}
    slots: dict[str, str] = {}
    clauses: list[str] = []
    said: list[str] = []
    for index, kind in enumerate(kinds):
        slots[f"v{index}"] = told[kind.key]
        clauses.append(rng.choice(kind.clauses).replace("{v}", f"{{v{index}}}"))
        said.append(kind.said.replace("{v}", f"{{v{index}}}"))
    joint = rng.choice((" and ", " and ", " and ", ", and ", ". ", ", ", "; ", ", also "))
    body = _joined(clauses, joint)
    lead, tail = rng.choice(LEADS), rng.choice(TAILS)
    ending = rng.choice((". ", ", ", " ")) + tail if tail else ""
    user = typed(rng, style, f"{lead} {body}{ending}", slots)
    answer = reply(rng, _ack(rng, kinds, said), slots)
    turn = exchange("told", user, answer, Expect())
    return Turn(turn.skill, turn.messages, turn.expects, told)


def _joined(clauses: list[str], joint: str) -> str:
    if len(clauses) < 3 or joint == ". ":
        return joint.join(clauses)
    return ", ".join(clauses[:-1]) + joint + clauses[-1]


SILENT = (
    "thank you for telling me.",
    "okay, I will remember that.",
    "all right.",
    "I see.",
    "noted!",
)
"""Confirmations that do not repeat the fact; a later answer must take it from the user's own words.
"""


def acknowledged(rng: random.Random, said: str) -> str:
    """Draw the pattern of a confirmation of what the user told, ``said`` in the model's words."""
    if rng.random() < 0.2:
        return rng.choice(SILENT)
    return rng.choice(("okay, I will remember that", "got it:")) + f" {said}."


def _ack(rng: random.Random, kinds: list[Kind], said: list[str]) -> str:
    if rng.random() < 0.25:
        return rng.choice(SILENT)
    if kinds[0].key == "name" and len(kinds) == 1:
        return rng.choice(("nice to meet you, {v0}!", "hello {v0}, nice to meet you!"))
    return rng.choice(("okay, I will remember that", "got it:")) + f" {_joined(said, ' and ')}."


_ASKS = (
    "did I tell you {indirect}?",
    "let me hear {indirect}",
    "you know {indirect}, right?",
    "[any idea|do you happen to know] {indirect}?",
    "what about {indirect}?",
    "[quiz|I bet you forgot|a test]: {direct}",
    "[and|but] {direct}",
    "are you able to [say|tell me] {indirect}?",
    "[hi|hello] [again|], {direct}",
    "[do you|can you|do you still|] [remember|recall|know] {indirect}?",
    "[do you|] [remember|know] {indirect}?",
    "[can you|could you|please|would you|] tell me {indirect} [please|again|]",
    "[please|can you|] remind me {indirect} [please|]",
    "I [forgot|have forgotten|don't remember|can't remember|wonder|want to know] {indirect}",
    "tell me {indirect}",
    "say {indirect}",
    "what did I [say|tell you] about {indirect}?",
    "[and|so|now|ok,|okay,|hey,|well,|just checking:|quick question:|last question:] {direct}",
    "[do you remember|remember|tell me|can you tell me|one more thing]: {direct}",
    "{direct}",
    "{direct}",
    "{direct}",
    "{direct}",
    "{direct}",
    "{direct}",
    "[earlier I told you something.|I told you before.|I told you earlier:] {direct}",
    "{direct} [I told you [earlier|before|]|do you remember?|please|tell me|again|now]",
)


def question(rng: random.Random, kind: Kind) -> str:
    """Draw a pattern of a question about a fact of this kind."""
    pattern = rng.choice(_ASKS).replace("{indirect}", rng.choice(kind.indirect))
    pattern = pattern.replace("{direct}", rng.choice(kind.direct))
    if kind.key.startswith(("my ", "relation ")) and rng.random() < 0.12:
        pattern = pattern.replace(" my ", " the ", 1)
    return pattern


def ask_turn(rng: random.Random, style: Style, kind: Kind, value: str) -> Turn:
    """Make an exchange in which the user asks for a fact stated before, whose value is `value`."""
    user = typed(rng, style, opened(rng, question(rng, kind)))
    answer = reply(rng, f"{kind.said}.", {"v": value})
    return exchange("recall", user, answer, Expect(has=(has_word(value),)))


def ask_two_turn(rng: random.Random, style: Style, known: list[tuple[Kind, str]]) -> Turn:
    """Make an exchange in which the user asks for two facts in one sentence."""
    slots = {f"v{index}": value for index, (_, value) in enumerate(known)}
    asked = [rng.choice(kind.direct).rstrip("?") for kind, _ in known]
    said = [kind.said.replace("{v}", f"{{v{index}}}") for index, (kind, _) in enumerate(known)]
    user = typed(rng, style, " and ".join(asked) + "?")
    answer = reply(rng, _joined(said, " and ") + ".", slots)
    return exchange("recall", user, answer, Expect(has=tuple(has_word(v) for v in slots.values())))


def about_me_turn(rng: random.Random, style: Style, known: list[tuple[Kind, str]]) -> Turn:
    """Make an exchange in which the user asks for all facts stated so far; the model repeats them
    in the order of `known`."""
    slots = {f"v{index}": value for index, (_, value) in enumerate(known)}
    user = typed(
        rng,
        style,
        "[what did I tell you?|what did I just tell you?|repeat what I told you|what do you know "
        "about me?|tell me [what|everything] you know about me|what have I told "
        "you [about me|so far|]?|what do you remember [about me|]?|who am I and what do you know?]",
    )
    said = [kind.said.replace("{v}", f"{{v{index}}}") for index, (kind, _) in enumerate(known)]
    answer = (
        reply(rng, ". ".join(map(capital, said)) + ".", slots)
        if said
        else "You have not told me anything."
    )
    return exchange(
        "about me", user, answer, Expect(has=tuple(has_word(v) for v in slots.values()))
    )


def not_told_turn(rng: random.Random, style: Style, kind: Kind) -> Turn:
    """Make an exchange in which the user asks for a fact that was never stated."""
    user = typed(rng, style, opened(rng, question(rng, kind)))
    answer = f"You have not told me {kind.unknown}."
    return exchange("not told", user, answer, Expect(has=("not told me",)))


# --- corrections of a fact, and what follows on an answer about one ------------------------------

_BARE_CORRECTIONS = (
    "[no,|no|no no,|sorry,|oh,|wait,|oops,|ups,|hm,|] I [meant|mean|wanted to say|meant to say] "
    "{v}",
    "[no,|no|sorry,|oh,|wait,|oops,] {v}",
    "[no,|sorry,|wait,|oops,|] [it is|it's] {v}",
    "[no,|sorry,|] I [said|told you|wrote] {v}",
    "[that is|that's] [wrong|not right|not correct][,|.] [it is|it's] {v}",
    "[I misspelled it|I made a typo|typo][,|.|:] {v}",
    "please [correct|change] that to {v}",
    "make that {v}",
    "{v}, I mean",
    "* {v}",
    "actually[,|] {v}",
)
"""Corrections of the fact that was the last thing said."""

_FULL_CORRECTIONS = (
    "[no,|sorry,|wait,|oops,|] {v}, not {old}",
    "[no,|sorry,|wait,|oops,|] not {old}[,| but|.] {v}",
    "[no,|sorry,|wait,|oops,|] [it is|it's] {v}, not {old}",
    "[no,|sorry,|wait,|oops,|] [it is|it's] not {old}, [it is|it's] {v}",
    "[no,|sorry,|] I [said|told you|wrote|meant] {v}[, not| instead of| and not] {old}",
    "{old} [is wrong|was wrong|was a typo][,|.] [it is|it's] {v}",
    "[actually|actually,|correction:|sorry,|wait,|I was wrong,|no, sorry,|I made a mistake,|oops,|"
    "I lied,|hm, no,|no,|I meant that|I meant:] {clause}",
    "[that is|that's] [wrong|not right|not correct|not true][,|.|:] {clause}",
    "[I changed my mind|it has changed|this has changed|you got that wrong][,|.|:] {clause}",
    "[now|since today|from now on] {clause}",
    "[no,|sorry,|actually,|] {clause}, not {old}",
)
"""Corrections that name the fact or its old value."""


def correct_turn(rng: random.Random, style: Style, kind: Kind, old: str, *, last: bool) -> Turn:
    """Make an exchange in which the user corrects a fact.

    `last`: the fact was the last thing said, so that the user need not say which one it is. The
    new value is in ``told``.
    """
    new = old
    while new == old:
        new = style.value(kind.draw(rng, held_out=False))
    pattern = rng.choice(_BARE_CORRECTIONS if last and rng.random() < 0.5 else _FULL_CORRECTIONS)
    pattern = pattern.replace("{clause}", rng.choice(kind.clauses))
    user = typed(rng, style, pattern, {"v": new, "old": old})
    start = rng.choice(("okay, I will remember that", "all right,", "thank you,", "got it:"))
    answer = reply(rng, f"{start} {kind.said}.", {"v": new})
    turn = exchange("correction", user, answer, Expect(has=(has_word(new),)))
    return Turn(turn.skill, turn.messages, turn.expects, {kind.key: new})


_TAKEN_BACK = (
    "[no,|] [it is|it's|that is|that's] not {v}",
    "[no,|no|] not {v}",
    "{v} is [wrong|not right|not correct]",
    "I [never|did not|didn't] [say|said] {v}",
)


def taken_back_turn(rng: random.Random, style: Style, kind: Kind, value: str) -> Turn:
    """Make an exchange in which the user says that a value is wrong, and does not name another."""
    user = typed(rng, style, rng.choice(_TAKEN_BACK), {"v": value})
    answer = f"I am sorry. Please tell me again {kind.unknown}."
    return exchange("fact follow-up", user, answer, Expect(has=("sorry",)))


_DOUBTS = (
    "[are you sure|really|is that right|is that correct|sure|certain|you sure|yes|are you "
    "certain][?|]",
)
_REASONS = (
    "[how do you know|how do you know that|why do you know that|who told you|who told you that|why|"
    "why do you think so|how come|where do you know that from][?|]",
)
_DENIALS = (
    "[no|nope|wrong|that is wrong|that's wrong|that is not right|no, that is wrong|not true|that's "
    "not "
    "true|incorrect|no it isn't|false|you are wrong|that is incorrect]",
)
_CLAIMS = (
    "{claim}[, right|, correct|, is that right|, isn't that so|, true]?",
    "is it [true|right|correct] that {claim}?",
    "[so|I think|did I say that|did I tell you that|you said that] {claim}?",
)


def mine(said: str) -> str:
    """Turn a clause of the model, "you live in {v}", into the user's, "I live in {v}"."""
    for ours, theirs in (("your ", "my "), ("you are ", "I am "), ("you ", "I ")):
        if said.startswith(ours):
            return theirs + said.removeprefix(ours)
    return said


def _as_question(claim: str) -> str | None:
    """Turn a clause of the user, "I live in {v}" or "my dog is called {v}", into a question, if it
    is of a form for which that is easy."""
    if claim.startswith("I am "):
        return f"am I {claim.removeprefix('I am ')}?"
    if claim.startswith("I ") and claim.split()[1] in ("live", "like", "work", "have", "play"):
        return f"do {claim}?"
    for verb in (" is ", " are "):
        if claim.startswith("my ") and claim.count(verb) == 1:
            subject, rest = claim.split(verb)
            return f"{verb.strip()} {subject} {rest}?"
    return None


def doubt_turn(rng: random.Random, style: Style, kind: Kind, value: str) -> Turn:
    """Make an exchange that follows on the recall of a fact: doubt, denial or "how do you know"."""
    asks, start = rng.choice(
        ((_DOUBTS, "Yes, {}."), (_REASONS, "You told me that {}."), (_DENIALS, ""))
    )
    user = typed(rng, style, rng.choice(asks))
    if not start:
        return exchange(
            "fact follow-up",
            user,
            f"I am sorry. Please tell me again {kind.unknown}.",
            Expect(has=("sorry",)),
        )
    answer = start.format(kind.said.replace("{v}", value))
    return exchange("fact follow-up", user, answer, Expect(has=(has_word(value),)))


def claim_turn(rng: random.Random, style: Style, kind: Kind, value: str) -> Turn:
    """Make an exchange in which the user states a fact as a question, every second time wrongly."""
    right = rng.random() < 0.5
    shown = value
    while not right and shown == value:
        shown = style.value(kind.draw(rng, held_out=False))
    claim = mine(kind.said)
    pattern = rng.choice(_CLAIMS).replace("{claim}", claim)
    if rng.random() < 0.35:
        pattern = _as_question(claim) or pattern
    user = typed(rng, style, pattern, {"v": shown})
    answer = f"{'Yes' if right else 'No'}, {kind.said.replace('{v}', value)}."
    return exchange("recall", user, answer, Expect(has=(has_word(value),)))


_ASK_ME = (
    "[please|can you|could you|] ask me [something|a question|anything|another question|a personal "
    "question] [about me|please|]",
    "[do you want to know|you want to know|would you like to know|want to know] something about "
    "me?",
    "[do you have|have you got] [a question|any questions] [for me|]?",
    "[now you ask|your turn to ask|you ask me something|get to know me|interview me]",
)
_ASK_BACK = {
    "name": "What is your name?",
    "home": "Where do you live?",
    "colour": "What is your favourite colour?",
    "food": "What is your favourite food?",
    "drink": "What is your favourite drink?",
    "hobby": "What is your hobby?",
    "age": "How old are you?",
    "job": "What is your job?",
}


def asked_turns(rng: random.Random, style: Style) -> tuple[list[Turn], dict[str, tuple[Kind, str]]]:
    """Make exchanges in which the user wants to be asked something, and answers in few words."""
    kind = rng.choice([kind for kind in KINDS if kind.key in _ASK_BACK])
    user = typed(rng, style, opened(rng, rng.choice(_ASK_ME)))
    turns = [exchange("small talk", user, _ASK_BACK[kind.key], Expect(has=(r"\?",)))]
    if rng.random() < 0.1:
        return turns, {}
    value = style.value(kind.draw(rng, held_out=False))
    pattern = rng.choice(
        ("{v}", "{v}", "{v}", "it is {v}", "[my|] answer: {v}", rng.choice(kind.clauses))
    )
    user = typed(rng, style, pattern, {"v": value})
    answer = reply(rng, acknowledged(rng, kind.said), {"v": value})
    turns.append(exchange("told", user, answer, Expect()))
    return turns, {kind.key: (kind, value)}


_BARE_ASKS = ("[and|what about|how about|and what about|now] {noun}[?|]", "{noun}[?|]")


def bare_turn(rng: random.Random, style: Style, kind: Kind, value: str) -> Turn | None:
    """Make an exchange about a fact that is only named, such as "and my city?"."""
    nouns = [noun for noun in kind.indirect if noun.startswith(("my ", "[which", "where", "the "))]
    if not nouns:
        return None
    user = typed(rng, style, rng.choice(_BARE_ASKS).replace("{noun}", rng.choice(nouns)))
    answer = reply(rng, f"{kind.said}.", {"v": value})
    return exchange("recall", user, answer, Expect(has=(has_word(value),)))
