"""What nano reads: stories, simple classics, and the same stories asked for in a chat."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

END = "<|endoftext|>"
SHORT = 800  # characters, of a story that leaves room for another in the context
LONG_CHATS, LONG_TURNS = 2000, 10
HELD_OUT = 0.1  # the last tenth of the TinyStories sample is never trained on

CLASSICS = (
    "aesop-aesops-fables",
    "hans-christian-andersen-andersens-fairy-tales",
    "the-brothers-grimm-grimms-fairy-tales",
    "edith-nesbit-the-book-of-dragons",
    "l-frank-baum-the-wonderful-wizard-of-oz",
    "l-frank-baum-ozma-of-oz",
    "l-frank-baum-the-life-and-adventures-of-santa-claus",
    "carlo-collodi-the-adventures-of-pinocchio",
    "beatrix-potter-great-big-treasury-of-beatrix-potter",
)

SUBJECTS = tuple(
    """
    ant apple baby ball balloon bear bee bird boat book box boy bug bunny bus butterfly
    cake car cat chicken cookie cow crab dinosaur doctor dog doll dragon dress duck
    elephant farmer fish flower fox friend frog garden ghost girl hat horse house ice
    king kite kitten knight lamp leaf lion lizard monkey monster moon mouse owl park
    party pig pirate pond prince princess puppy queen rabbit rain river robot rock sheep
    shoe snail snake snow spider squirrel star sun swing teacher tiger toy train tree
    truck turtle whale wolf worm
    """.split()  # noqa: SIM905  (a hundred quoted words are hard to read)
)

REQUESTS = (
    "Tell me a story about {}.",
    "Tell me a story about {}.",
    "Can you tell me a story about {}?",
    "Write a short story about {}.",
    "Please tell me a bedtime story about {}.",
    "I want to hear a story about {}.",
    "Tell a story with {} in it.",
    "Story about {} please",
)
WITHOUT_ARTICLE = ("ice", "rain", "snow")
THE_ONLY_ONE = ("moon", "sun")
PLAIN_REQUESTS = (
    "Tell me a story.",
    "Tell me a story!",
    "Can you tell me a story?",
    "A story, please.",
)
MORE_REQUESTS = ("Tell me another one.", "Another one, please!", "One more story, please.")
SYSTEMS = (
    "You are a kind storyteller.",
    "You tell short stories to small children.",
    "You are nano, a small model that tells stories.",
)
SMALL_TALK = (
    ("Hello!", "Hello! Would you like to hear a story?"),
    ("Hi", "Hello! Would you like to hear a story?"),
    ("Who are you?", "I am nano, a small model. I tell little stories."),
    ("What is your name?", "My name is nano. I tell little stories."),
    ("What can you do?", "I can tell you a story. What should it be about?"),
    ("Thank you!", "You are welcome! I hope you liked the story."),
    ("How are you?", "I am happy today. Would you like to hear a story?"),
    ("Good night", "Good night! Sleep well."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often a document of each kind is seen in an epoch.

    Args:
        real: A TinyStories story; there are so few that more than one view an epoch is learnt by
            heart.
        sampled: A story sampled from stories260K, its surest words only.
        drawn: A story drawn from stories260K as it is, by ``sample.py``.
        classic: A passage of a children's book.
        real_chat: A TinyStories story asked for in a chat.
        sampled_chat: A sampled story asked for in a chat.
        talk: A short chat.
        second: A story told in a chat after another.
        long_chat: Many turns, stories and small talk.
    """

    real: float
    sampled: float
    drawn: float
    classic: float
    real_chat: float
    sampled_chat: float
    talk: float
    second: float
    long_chat: float


MIX = Mix(
    real=1,
    sampled=1,
    drawn=1,
    classic=0.35,
    real_chat=0.5,
    sampled_chat=0.25,
    talk=1,
    second=0.25,
    long_chat=0.5,
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents to train on and stories kept apart.

    Args:
        documents: Training texts with how often each is seen in an epoch; chat ones contain role
            tokens.
        plain: The sound texts among them, once each, for the tokenizer.
        held_out: Stories never trained on.
    """

    documents: list[tuple[str, float]]
    plain: list[str]
    held_out: list[str]


def split_stories(path: Path) -> list[str]:
    """Stories of a file in which a line ``<|endoftext|>`` follows each."""
    parts = path.read_text(encoding="utf-8").split(END)
    return [story for part in parts if (story := _tidy(part))]


def held_out_stories(folder: Path) -> list[str]:
    """The stories of the TinyStories sample that are never trained on."""
    real = split_stories(folder / "tinystories-sample" / "stories.txt")
    return real[len(real) - round(len(real) * HELD_OUT) :]


def load_corpus(folder: Path, *, seed: int) -> Corpus:
    """Read and mix everything. The same seed gives the same documents.

    Args:
        folder: Holds the four collections.
        seed: Of the chats' words.
    """
    rng = random.Random(seed)
    real = split_stories(folder / "tinystories-sample" / "stories.txt")
    held_out = held_out_stories(folder)
    real = real[: len(real) - len(held_out)]
    sampled, drawn = (
        [story for story in split_stories(folder / name / "stories.txt") if _is_sound(story)]
        for name in ("stories260k-samples", "stories260k-draws")
    )
    classics = _classics(folder / "childrens-classics")
    documents = [(story, MIX.real) for story in real]
    documents += [(story, MIX.sampled) for story in sampled]
    documents += [(story, MIX.drawn) for story in drawn]
    documents += [(passage, MIX.classic) for passage in classics]
    documents += [(_chat(story, rng), MIX.real_chat) for story in real]
    documents += [(_chat(story, rng), MIX.sampled_chat) for story in sampled]
    documents += [(_talk(rng, rng.choice(real)), MIX.talk) for _ in range(250)]
    short = [story for story in sampled if len(story) < SHORT]
    documents += [(_second(rng.choice(short), story, rng), MIX.second) for story in short]
    documents += [(_long_chat(short, rng), MIX.long_chat) for _ in range(LONG_CHATS)]
    return Corpus(documents, real + sampled + classics, held_out)


def _tidy(text: str) -> str:
    lines = (" ".join(line.split()) for line in text.strip().splitlines())
    return "\n".join(line for line in lines if line)


def _is_sound(story: str) -> bool:
    """Leave out sampled stories that are broken, or stutter."""
    words = story.split()
    trigrams = list(zip(words, words[1:], words[2:], strict=False))
    is_varied = len(set(trigrams)) > 0.8 * len(trigrams)
    return 60 < len(words) < 400 and story[-1] in '.!?"' and is_varied


def _classics(folder: Path) -> list[str]:
    """Passages of simple books: short paragraphs in short sentences, joined to page length."""
    passages = []
    for name in CLASSICS:
        page: list[str] = []
        text = (folder / f"{name}.txt").read_text(encoding="utf-8")
        for block in re.split(r"\n\s*\n", text):
            paragraph = " ".join(block.split())
            sentences = re.split(r"(?<=[.!?])\s+", paragraph)
            words = len(paragraph.split())
            if words < 8 or words / len(sentences) > 22 or not paragraph.isascii():
                continue
            page.append(paragraph)
            if sum(len(p) for p in page) > 900:
                passages.append("\n".join(page))
                page = []
    return passages


def _subject(story: str, rng: random.Random) -> str | None:
    """What a story is about: a name or a thing that it mentions more than once."""
    names = re.findall(r"\bnamed ([A-Z][a-z]+)", story)
    words = re.findall(r"[a-z]+", story.lower())
    things = [s for s in SUBJECTS if words.count(s) + words.count(s + "s") >= 2]
    who = re.search(r"\ba (?:little |small |big |young )?(boy|girl|dog|cat|bird|bear) named", story)
    choices = [_with_article(thing) for thing in things]
    choices += [rng.choice((n, f"someone named {n}")) for n in names[:1]]
    if who and names:
        choices.append(f"a {who[1]} named {names[0]}")
    if len(things) >= 2:
        first, second = rng.sample(things, 2)
        choices.append(f"{_with_article(first)} and {_with_article(second)}")
    return rng.choice(choices) if choices else None


def _with_article(thing: str) -> str:
    if thing in WITHOUT_ARTICLE:
        return thing
    if thing in THE_ONLY_ONE:
        return f"the {thing}"
    return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"


def _turns(turns: list[tuple[str, str]]) -> str:
    return "".join(f"<|{role}|>\n{content}\n" for role, content in turns)


def _request(story: str, rng: random.Random) -> str:
    subject = _subject(story, rng)
    if subject is None or rng.random() < 0.1:
        return rng.choice(PLAIN_REQUESTS)
    return rng.choice(REQUESTS).format(subject)


def _chat(story: str, rng: random.Random) -> str:
    turns = [("user", _request(story, rng)), ("assistant", story)]
    if rng.random() < 0.2:
        turns.insert(0, ("system", rng.choice(SYSTEMS)))
    return _turns(turns).removesuffix("\n")


def _talk(rng: random.Random, story: str) -> str:
    question, answer = rng.choice(SMALL_TALK)
    turns = [("user", question), ("assistant", answer)]
    if rng.random() < 0.4 and len(story) < SHORT:
        turns += [("user", _request(story, rng)), ("assistant", story)]
    return _turns(turns).removesuffix("\n")


def _second(first: str, story: str, rng: random.Random) -> str:
    turns = [("user", _request(first, rng)), ("assistant", first)]
    again = rng.choice(MORE_REQUESTS) if rng.random() < 0.5 else _request(story, rng)
    turns += [("user", again), ("assistant", story)]
    return _turns(turns).removesuffix("\n")


def _long_chat(stories: list[str], rng: random.Random) -> str:
    turns = [("system", rng.choice(SYSTEMS))] if rng.random() < 0.2 else []
    for index in range(rng.randint(3, LONG_TURNS)):
        if rng.random() < 0.25:
            turns += zip(("user", "assistant"), rng.choice(SMALL_TALK), strict=True)
            continue
        story = rng.choice(stories)
        again = index and rng.random() < 0.5
        request = rng.choice(MORE_REQUESTS) if again else _request(story, rng)
        turns += [("user", request), ("assistant", story)]
    return _turns(turns).removesuffix("\n")
