"""A first look: one text through one real model, and what its heads do with it.

Everything comes from streaming readings of lazy weights: one pass per layer for what all heads
do, a few rows for a chosen word, one more pass over the one head that is drawn.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eyeline import recording
from eyeline.errors import ArgumentError, ModelError
from eyeline.glossary import language
from eyeline.looking import asked, questions
from eyeline.looking.asked import Model, kind, whole, within
from eyeline.looking.data import DEFAULT_TEXT, READINGS, Look, Pair
from eyeline.looking.units import Units
from eyeline.models import DEFAULT, LoadedModel, Progress, known
from eyeline.models.loaded import quiet
from eyeline.seen import Seen, watch
from eyeline.tokens import Tokens, Words, from_ids

__all__ = ["DEFAULT_TEXT", "READINGS", "Look", "look"]


@dataclass(frozen=True)
class _Ran:
    """What is looked at: a run with its tokens, of which `prompt` were given and not written."""

    seen: Seen
    tokens: Tokens
    text: str
    name: str
    title: str
    causal: bool
    prompt: int


def look(
    text: str | Seen,
    model: Model = "minilm",
    *,
    layer: int | None = None,
    head: int | None = None,
    token: str | int | None = None,
    top: int = 3,
    by: str = "words",
    pieces: bool = False,
    generate: int = 0,
    save: str | os.PathLike[str] | None = None,
    lang: str | None = None,
    download: bool = False,
    progress: Progress | None = None,
) -> Look:
    """Run `text` through a real model and say what its attention does.

    `model` is a bundled name, a folder, a Hub id in the local cache (or fetched with `download`),
    or what `eyeline.models.load` returned. `layer` and `head` choose the head to draw; without
    them it is the one that leads by the reading `by` (one of words, special, self, near, entropy,
    distance), or with a `token` the one of its strongest pair. `token` is a word or its index;
    `top` how many words are named beside each; `pieces=True` shows the model's own tokens in place
    of words. With `generate` the model first writes on by so many tokens, the likeliest at each
    step, and the look is at the whole. `save` names a file for a recording of the run; in place of
    a text `look` also takes one, as `eyeline.load(path)` gives it, and needs no model then.

    Errors: ModelError for a model that cannot be had or takes fewer tokens; ArgumentError for an
    empty text, or a layer, head, token or reading that is not there.

    >>> seen = look("The keys to the old cabinet are on the table because they were too heavy "
    ...             "to carry.", token="they")
    >>> pair = seen.pairs[0]
    >>> seen.words[pair.word], pair.layer, pair.head, round(pair.weight, 1)
    ('keys', 3, 1, 0.5)
    """
    _check_choice(by, token)
    top = whole("top", top)
    layer = None if layer is None else whole("layer", layer)
    head = None if head is None else whole("head", head)
    if top < 1:
        raise ArgumentError(f"top={top} names no word: give 1 or more.")
    started = time.perf_counter()
    if isinstance(text, Seen):
        ran = _recorded(text)
    else:
        loaded, tokens = _given(text, model, download, progress)
        more = continued(loaded, tokens, _count(generate))
        started = time.perf_counter()
        ran = _run(loaded, text, more, len(tokens))
    if save is not None:
        recording.save(ran.seen, save, model=ran.name)
    seen, tokens = ran.seen, ran.tokens
    units = Units.of(tokens, ran.causal, pieces)
    word = None if token is None else _find(token, units.words)
    spend, overview = questions.survey(seen, units, by)
    pairs = [] if word is None else questions.pairs(seen, units, word, top)
    chosen_layer, chosen_head, chosen = _choose(overview, by, layer, head, pairs)
    weights = seen[chosen_layer][0, chosen_head]
    return Look(
        text=ran.text,
        lang=language(lang),
        model=ran.name,
        title=ran.title,
        causal=ran.causal,
        layers=len(seen),
        heads=max(len(row) for row in overview),
        tokens=len(tokens.ids),
        pieces=pieces,
        words=units.words.labels,
        special=tuple(units.sink),
        unknown=units.words.unknown,
        readers=() if isinstance(text, Seen) else _readers(ran.name, tokens),
        spend=spend,
        by=by,
        overview=overview,
        layer=chosen_layer,
        head=chosen_head,
        chosen=chosen,
        map=questions.heat_map(weights, units),
        sinks=questions.sinks(weights, units),
        glances=tuple(questions.glances(weights, units, top)),
        fan=None if word is None else questions.fan(weights, units, word, top),
        pairs=tuple(pairs[: max(top, questions.NAMED)]),
        generate=generate or len(tokens) - ran.prompt,
        written=tokens.text[len(ran.text) :],
        generated=tuple(first >= ran.prompt for first, _ in units.words.spans),
        seconds=time.perf_counter() - started,
    )


def _given(
    text: str,
    model: Model,
    download: bool,
    progress: Progress | None,
) -> tuple[LoadedModel, Tokens]:
    """The model and the text as it reads it."""
    _check_text(text)
    loaded = asked.loaded(model, download, progress)
    tokens = loaded.tokens(text)
    if not any(start < stop for start, stop in tokens.offsets):
        raise ArgumentError("The text is empty: give a few words to look at.")
    return loaded, tokens


def _run(loaded: LoadedModel, text: str, tokens: Tokens, prompt: int) -> _Ran:
    """One forward of the model, watched."""
    inputs = loaded.inputs(tokens)
    with torch.no_grad(), watch(loaded.model) as seen:
        loaded.model(**inputs)
    seen.tokens = tokens
    seen.generated = torch.arange(len(tokens)) >= prompt if len(tokens) > prompt else None
    return _Ran(seen, tokens, text, loaded.name, loaded.title, loaded.causal, prompt)


def _recorded(seen: Seen) -> _Ran:
    """A run that was watched or recorded before."""
    from eyeline.looking.pictures import patches

    if patches(seen) is not None:
        raise ArgumentError(
            "This is a run over a picture: eyeline.looking.pictures.look_at(seen) shows it."
        )
    tokens = seen.tokens
    if tokens is None:
        raise ArgumentError("look() needs the tokens of a run: set seen.tokens before you save it.")
    first = seen[0]
    one_text = (first.shape[0], *first.shape[2:]) == (1, len(tokens), len(tokens))
    if set(seen.kinds) != {"self"} or not one_text:
        raise ArgumentError(
            f"look() is of one text and self-attention over it, and this run has {len(tokens)} "
            f"tokens and weights {list(first.shape)}, {' and '.join(sorted(set(seen.kinds)))}."
        )
    name, title = asked.named(seen)
    causal = len(tokens) < 2 or not bool(first[:, :, :-1, -1].any())
    written = seen.generated
    prompt = len(tokens) if written is None else int((~written).sum())
    end = max((stop for _, stop in tokens.offsets[:prompt]), default=0)
    text = tokens.text if prompt == len(tokens) else tokens.text[:end]
    return _Ran(seen, tokens, text, name, title, causal, prompt)


def continued(loaded: LoadedModel, tokens: Tokens, count: int) -> Tokens:
    """The tokens with up to `count` more that the model writes, the likeliest at each step.

    It ends early where the model ends its text. Raises ModelError for a model that writes none,
    and where prompt and continuation are more than it takes.
    """
    if not count:
        return tokens
    language_model: Any = loaded.language_model()
    inputs = loaded.inputs(tokens)
    if len(tokens) + count > loaded.max_tokens:
        raise ModelError(
            f"The text is {len(tokens)} tokens long and {loaded.title} takes"
            f" {loaded.max_tokens}: {count} more do not fit."
        )
    with torch.no_grad(), quiet():
        ids = language_model.generate(
            **inputs,
            attention_mask=torch.ones_like(inputs["input_ids"]),
            max_new_tokens=count,
            do_sample=False,
            use_cache=True,
            pad_token_id=language_model.config.eos_token_id,
        )
    return from_ids(loaded.tokenizer, ids[0, len(tokens) :].tolist(), tokens)


def _choose(
    overview: Sequence[Sequence[float]],
    by: str,
    layer: int | None,
    head: int | None,
    pairs: list[Pair],
) -> tuple[int, int, str]:
    """The head to draw, and why: asked for, the token's strongest, or leading by the reading."""
    layers = range(len(overview)) if layer is None else [within("layer", layer, len(overview))]
    if head is not None:
        within("head", head, max(len(overview[at]) for at in layers))
    if layer is not None and head is not None:
        return layer, head, "asked"
    fitting = [
        (at, h) for at in layers for h in range(len(overview[at])) if head is None or h == head
    ]
    for pair in pairs:
        if (pair.layer, pair.head) in fitting:
            return pair.layer, pair.head, "token"
    sign = -1 if READINGS[by] == "smallest" else 1
    best = max(fitting, key=lambda place: sign * overview[place[0]][place[1]])
    return *best, "leads"


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise ArgumentError(f"The text is {kind(text)}: give it as a str.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise ArgumentError(
            f"The text holds {half} at {error.start}, a part of a character and not one itself:"
            " decode what it was read from as UTF-8."
        ) from None


def _check_choice(by: str, token: str | int | None) -> None:
    if not isinstance(by, str) or by not in READINGS:
        raise ArgumentError(f"There is no reading “{by}”: choose one of {', '.join(READINGS)}.")
    if token is not None and not isinstance(token, str):
        whole("token", token, "a word of the text or its index")


def _count(generate: object) -> int:
    count = whole("generate", generate)
    if count < 0:
        raise ArgumentError(f"generate={generate} is no number of tokens: give 0 or more.")
    return count


def _readers(name: str, tokens: Tokens) -> tuple[str, ...]:
    """The bundled models beside `name` that are here and can read the text."""
    english = sum(map(str.isascii, tokens.text)) > 0.9 * len(tokens.text)
    return tuple(
        other.name
        for other in known()
        if other.name != name
        and other.reads == "text"
        and other.installed
        and len(tokens.ids) <= other.max_tokens
        and (english or other.name != DEFAULT)  # MiniLM has a vocabulary of English words
    )


def _find(token: str | int, words: Words) -> int:
    """The index of the word named; a string is looked up as a word first, then as an index."""
    labels = words.labels
    if isinstance(token, str):
        for same in (str, str.casefold):
            places = [u for u, label in enumerate(labels) if same(label) == same(token)]
            if places:
                return places[0]
        if not token.isdecimal():
            close = difflib.get_close_matches(token, dict.fromkeys(labels), n=3, cutoff=0.4)
            near = close or list(dict.fromkeys(labels))[:5]
            raise ArgumentError(
                f"The text has no word “{token}”. Near it: {', '.join(near)};"
                f" or give an index, 0 to {len(labels) - 1}."
            )
    token = int(token)
    if not 0 <= token < len(labels):
        raise ArgumentError(f"There is no word {token}: the words are 0 to {len(labels) - 1}.")
    return token
