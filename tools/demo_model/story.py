"""Turns with short stories of at least a hundred words, coherent from beginning to end."""

import random

from tools.demo_model import values
from tools.demo_model.grammar import Style, expand, opened, typed
from tools.demo_model.turns import Expect, Turn, exchange

_PLAIN_ASKS = (
    "[please|can you|could you|would you|now||||] tell me a "
    "[short|little|nice|good|bedtime|funny|long|]"
    " story [please|]",
    "[please|can you|could you|] [write|make up|give me|invent] a [short|little|nice|long|] "
    "story [for me|]",
    "[I want|I would like|I'd like] [to hear|to read|] a [short|good|] story",
    "[tell|read] [me|us] [a|another|one more] [story|tale|bedtime story|fairy tale]",
    "[do you know|got|have you got] a [good|] story?",
    "[entertain me with|I am in the mood for|how about telling me|I feel like] a story",
    "[do you have|have you got] [any|some] stories [for me|]?",
    "[one|any] story [will do|please]",
    "[can|will] you [make up|invent|think of] a [story|tale]?",
    "[let's have|give us|read us] a [story|tale]",
    "story [please|time]",
    "a story please",
    "[another|one more] story [please|]",
    "[tell me|write] a story of [one hundred|100|a hundred] words",
    "once upon a time",
    "[let me|let us] hear a story",
    "can you tell stories?",
)
_ABOUT_ASKS = (
    "[please|can you|could you||||] tell me a [short|little|nice|long|] story [about|of|with] "
    "{hero}",
    "[please|] [write|make up|give me|tell|invent] [me|] a [short|] story [about|with] {hero} "
    "[in it|]",
    "[I want|I would like] [to hear|] a story about {hero}",
    "story about {hero} [please|]",
    "[tell me|do you know] a [tale|fairy tale|bedtime story] about {hero}",
    "a story about {hero} [please|]",
)

_HEROES = values.listed("""
fox, bear, rabbit, mouse, owl, turtle, frog, duck, hedgehog, robot, dragon, cat, dog
""")
_HERO_NAMES = ["Milo", "Pip", "Nora", "Tilly", "Bruno", "Luna", "Otis", "Wanda"]
_FRIENDS = ("crow", "snail", "squirrel", "beaver", "robin", "toad")
_FRIEND_NAMES = ["Bess", "Finn", "Greta", "Hal", "Ivy", "Jonas"]
_PLACES = (
    "at the edge of a quiet forest",
    "by a wide blue lake",
    "on a small green hill",
    "in a village near the sea",
    "under an old oak tree",
)
_LOST = ("silver bell", "little lamp", "red kite", "blue boat", "golden key", "warm hat")
_SPOTS = (
    "behind the old mill",
    "under the wooden bridge",
    "at the top of the tallest tree",
    "beside the frozen stream",
    "inside a hollow log",
)


def tell(rng: random.Random, hero: str | None) -> str:
    """Make a story about `hero`, a noun with its article; None: about a random hero."""
    slots = {
        "hero": hero or f"a {rng.choice(('small', 'young', 'brave', ''))} {rng.choice(_HEROES)}",
        "name": rng.choice(_HERO_NAMES),
        "kind": rng.choice(_FRIENDS),
        "friend": rng.choice(_FRIEND_NAMES),
        "place": rng.choice(_PLACES),
        "lost": rng.choice(_LOST),
        "spot": rng.choice(_SPOTS),
    }
    text = (
        "Once upon a time there was {hero} named {name}, who lived {place}. "
        "[Every morning {name} went for a long walk and greeted all the neighbours.|{name} was "
        "curious about everything and asked a hundred questions a day.] "
        "[The thing {name} loved most in all the world was a {lost}.|{name} had one great "
        "treasure: a {lost}.] "
        "[But one windy night the {lost} was gone.|One day a storm came, and in the morning the "
        "{lost} was gone.] "
        "{name} looked in the garden, on the roof and in every corner of the house, but the {lost} "
        "was nowhere to be found. "
        "[Sad and tired, {name} sat down on a stone and sighed.|{name} sat down and began to cry.] "
        "Just then a {kind} named {friend} came along the path. "
        '"Why are you so sad?" asked {friend}. '
        '"I have lost my {lost}," said {name}. '
        '"Then let us look for it together," said {friend}, "for four eyes see more than two." '
        "They walked [all day|for many hours], over the fields and through the tall grass, and "
        "they asked everyone they met. "
        "At last, just before the sun went down, they found the {lost} {spot}. "
        "{name} was so happy that they danced [all the way home|until the stars came out]. "
        "From that day on {name} and {friend} were the best of friends, and they shared the {lost} "
        "and every [good day|adventure] that came. The end."
    )
    return " ".join(expand(rng, text).format(**slots).split())


def story_turn(rng: random.Random, style: Style, *, held_out: bool) -> Turn:
    """Make an exchange about a story, in half of all cases with a hero that the user names."""
    hero = None
    pattern = rng.choice(_PLAIN_ASKS)
    has: tuple[str, ...] = (r"the end",)
    if rng.random() < 0.5:
        pattern = rng.choice(_ABOUT_ASKS)
        noun = values.choose(
            rng, values.ANIMALS if rng.random() < 0.6 else values.NOUNS, held_out=held_out
        )
        if rng.random() < 0.25:
            noun = values.invent(rng, held_out=held_out)
        if rng.random() < 0.3:
            noun = f"{values.choose(rng, values.ADJECTIVES, held_out=held_out)} {noun}"
        hero = style.value(f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}")
        has = (hero, "the end")
    user = typed(rng, style, opened(rng, pattern), {"hero": hero or ""})
    return exchange("story", user, tell(rng, hero), Expect(words_min=100, has=has))
