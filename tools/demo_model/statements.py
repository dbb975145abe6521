"""Turns in which the user says anything, and later asks for it: the model answers in the user's
words."""

import random

from tools.demo_model import chat, values
from tools.demo_model.grammar import Style, opened, typed
from tools.demo_model.turns import Expect, Turn, exchange

_STATEMENTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    # (words for {x}, what the user says, what the user asks later)
    (
        "train, bus, plane, flight, ferry, tram, taxi",
        (
            "my {x} [leaves|goes|departs] [at {h}|from platform {h}|for {city} at {h}]",
            "the {x} to {city} [leaves|goes] [at {h}|at {h} o'clock|from platform {h}]",
        ),
        ("when does [my|the] {x} [leave|go]?", "[where|which platform] does the {x} leave from?"),
    ),
    (
        "car, washing machine, laptop, phone, bike, fridge, oven, radio, {noun}",
        ("my {x} [broke|was stolen|stopped working|exploded|burned] [yesterday|today|last week|]",),
        ("what [broke|happened|was stolen]?", "what happened to my {x}?", "what is wrong with it?"),
    ),
    (
        "paid, spent, won, lost, found, earned",
        ("I {x} {h} [euros|dollars|pounds|coins] [for a {noun}|yesterday|on {food}|]",),
        ("how much [was it|money was it|did I say]?", "how many [euros|coins] [was it|did I say]?"),
    ),
    (
        "meeting, exam, concert, party, class, game, film, lesson",
        ("[my|the] {x} was [{adjective}|cancelled|moved to {h}|in {city}|too long|postponed]",),
        ("how was [my|the] {x}?", "what [happened to|about] [my|the] {x}?", "where was the {x}?"),
    ),
    (
        "doctor, teacher, boss, mother, friend, wife, neighbour, coach, lawyer",
        (
            "my {x} [says|said|told me] [that|] [I should eat {food}|the {noun} is {adjective}|I "
            "work too much|I must buy a {noun}|it will rain|I am too {adjective}]",
        ),
        ("what [did|does] my {x} [say|tell me]?", "who [said|told me] that?"),
    ),
    (
        "box, bag, drawer, bottle, letter, parcel, basket, cupboard",
        (
            "the {x} [contains|is full of|has] [{noun}s|{food}|gold|{h} {noun}s]",
            "there [is|are] [a {noun}|{h} {noun}s|{food}] in the {x}",
        ),
        ("what is in the {x}?", "what does the {x} contain?", "what is inside?"),
    ),
    (
        "dreamed, dreamt",
        ("[last night|yesterday|] I {x} [of|about] [a {animal}|{noun}s|{name}|{city}]",),
        ("what did I dream [of|about]?", "what was my dream [about|]?"),
    ),
    (
        "need, want, have, forgot",
        ("I {x} to buy [a {noun}|{food} and a {noun}|{noun}s|{food}] [today|tomorrow|]",),
        ("what [should|did|do] I [buy|need to buy|want to buy|forget]?", "what must I buy?"),
    ),
    (
        "reading, watching, writing",
        ("I am {x} [a book|a film|something] [about {noun}s|called {odd}|by {name} {odd}]",),
        ("what am I {x}?", "what is it [about|called]?"),
    ),
    (
        "learning, planning, building, waiting for, looking for, cooking, painting",
        ("I am {x} [a {noun}|{language}|{name}|a {adjective} {noun}|{food}]",),
        ("what am I {x}?", "what am I doing?", "what did I say I am doing?"),
    ),
    (
        "garden, bed, house, kitchen, roof, street, car",
        ("there [is|are] [a {animal}|{h} {animal}s|a {adjective} {noun}] [in|on|near] my {x}",),
        ("what is [in|on|near] my {x}?", "where is it?", "what did I see?"),
    ),
    (
        "plan, idea, dream, goal, secret, problem, wish",
        (
            "my {x} is [to buy a {noun}|to go to {city}|that I like {food}|to learn {language}|"
            "that my {noun} is {adjective}|to become a {noun}]",
            "I have a {x}: I [hate|love|want|stole] [{food}|a {noun}|{noun}s]",
        ),
        ("what is my {x}?", "do you [know|remember] my {x}?", "tell me my {x}"),
    ),
    (
        "broke, bought, stole, painted, ate, lost, found, sold",
        ("{name} {x} [my {noun}|a {noun}|the {food}|{h} {noun}s] [yesterday|today|]",),
        ("who {x} [it|something]?", "what did {name} do?", "who did it?", "who was it?"),
    ),
    (
        "capital, king, queen, owner, winner, answer, end, colour",
        ("the {x} of {odd} is {odd2}", "the {x} of the {noun} is {odd2}"),
        ("what is the {x}?", "who is the {x}?", "do you remember the {x}?"),
    ),
    (
        "eat, drink, speak, sing, wear",
        ("in {odd} [people|they] {x} {odd2}",),
        ("what do they {x} [in {odd}|]?", "what do people {x} in {odd}?"),
    ),
    (
        "went to, came from, flew to, drove to, walked to",
        ("[yesterday|today|last summer|] [I|we] {x} [{city}|the {noun}|a {adjective} {noun}]",),
        ("where [did I go|was I|did we go|did I say I was]?", "what did I do?"),
    ),
    (
        "bigger, older, taller, faster, richer, nicer",
        ("{name} is {x} than {name2}", "the {noun} is {x} than the {noun2}"),
        ("who is {x}?", "which [one|] is {x}?", "what is {x}?"),
    ),
    (
        "tired, late, angry, happy, sad, nervous",
        ("I am {x} because [of my {noun}|my {noun} is {adjective}|{name} ate my {food}]",),
        ("why am I {x}?", "what makes me {x}?", "what did I say about that?"),
    ),
    (
        "is called, belongs to, was made by, comes from",
        ("the {adjective} {noun} {x} {name}", "this {noun} {x} {name}"),
        ("what did I say about the {noun}?", "whose {noun} is it?", "what about the {noun}?"),
    ),
    (
        "on Monday, on Friday, tomorrow, next week, tonight, at noon",
        ("{x} I [will|must|want to] [visit {name}|paint the {noun}|cook {food}|go to {city}]",),
        ("what will I do {x}?", "what am I doing {x}?", "what are my plans [for|] {x}?"),
    ),
)
_HEARD = ("I see. Thank you for telling me.", "Okay, I will remember that.")


def statement_turns(rng: random.Random, style: Style) -> list[Turn]:
    """Make an exchange in which the user says something, and mostly one, right after it or after
    some small talk, in which the user asks for it."""
    words, says, asks = rng.choice(_STATEMENTS)
    both = f"{rng.choice(says)}\n{rng.choice(asks)}".replace("{x}", rng.choice(words.split(", ")))
    both = both.replace("{h}", str(rng.randint(2, 24)))
    both = both.replace("{name2}", values.choose(rng, values.NAMES, held_out=False))
    say, ask = chat.fill(rng, both, held_out=False).split("\n")
    user = typed(rng, style, opened(rng, say))
    turns = [exchange("small talk", user, rng.choice(_HEARD), Expect(has=("remember|see",)))]
    if rng.random() < 0.2:
        return turns
    if rng.random() < 0.3:
        turns.append(chat.intent_turn(rng, style, "small talk", chat.SMALL_TALK, held_out=False))
    asked = typed(rng, style, opened(rng, ask))
    answer = f"You said: {user}"
    return [*turns, exchange("recall", asked, answer, Expect(exact=answer))]
