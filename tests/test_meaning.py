"""Attention whose meaning is known: atoms of reactions, objects in pictures, words in speech.

Each is measured beside what chance or another head gives on the same input.
"""

from __future__ import annotations

import re
import runpy

import pytest
import torch
from torch import Tensor

from eyeline import models, watch
from eyeline.looking.alignment import aligned
from eyeline.looking.pictures import look_at
from eyeline.looking.sounds import attention, crossed, listen
from tests.real import DATA, SMILES, rxnmapper

pytestmark = pytest.mark.slow

# --- rxnmapper: an atom of the product looks at the same atom of the reactants -----------------

REACTIONS = (
    "CC(=O)O.OCC>>CC(=O)OCC",
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1",
    "Brc1ccsc1.OB(O)c1ccncc1>>c1cc(-c2ccsc2)ccn1",
    "CI.Oc1ccc(Cl)cc1>>COc1ccc(Cl)cc1",
    "O=Cc1ccco1.NC1CCCCC1>>c1coc(CNC2CCCCC2)c1",
    "O=[N+]([O-])c1ccc(Cl)cc1>>Nc1ccc(Cl)cc1",
    "Fc1ccc([N+](=O)[O-])cc1.C1COCCN1>>O=[N+]([O-])c1ccc(N2CCOCC2)cc1",
    "CS(=O)(=O)Cl.Nc1ccccc1>>CS(=O)(=O)Nc1ccccc1",
    "CC(C)(C)OC(=O)OC(=O)OC(C)(C)C.NCc1ccccc1>>CC(C)(C)OC(=O)NCc1ccccc1",
    "BrCc1ccccc1.OCC(F)(F)F>>FC(F)(F)COCc1ccccc1",
)


def element(token: str) -> str | None:
    """The chemical element of an atom's token: "Cl", "[nH]" → "N"; None for bonds and numbers."""
    found = re.match(r"\[?\d*([A-Z][a-z]?|[a-z])", token)
    return found[1].capitalize() if found else None


def test_atoms_of_a_product_look_at_the_same_element():
    model, vocabulary = rxnmapper()
    hits, atoms, chance = torch.zeros(12, 8), 0, 0.0
    for reaction in REACTIONS:
        tokens = SMILES.findall(reaction)
        assert "".join(tokens) == reaction
        tokens = ["[CLS]", *tokens, "[SEP]"]
        with torch.no_grad(), watch(model) as seen:
            model(torch.tensor([[vocabulary[token] for token in tokens]]))
        assert len(seen) == 12  # one module, called twelve times
        kinds = [None, *map(element, tokens[1:-1]), None]
        arrow = tokens.index(">>")
        sources = torch.tensor([i for i in range(arrow) if kinds[i]])
        for at in range(arrow, len(tokens)):
            if kinds[at] in (None, "C"):
                continue
            same = torch.tensor([kinds[i] == kinds[at] for i in sources])
            atoms, chance = atoms + 1, chance + float(same.float().mean())
            rows = torch.stack([weights[0, :, at] for weights in seen])
            hits += same[rows[..., sources].argmax(-1)]
    shares = hits / atoms
    print(
        f"{atoms} atoms: L10 H5 {shares[10, 5]:.2f}, chance {chance / atoms:.2f}, "
        f"the median head {shares.median():.2f}, L10 H2 {shares[10, 2]:.2f}"
    )
    assert atoms == 28
    assert shares[10, 5] == 1
    assert chance / atoms < 0.2
    assert shares.median() < 0.3
    assert shares[10, 2] < 0.5


# --- DINOv2: the class token looks at the object ----------------------------------------------


def pictures():
    """(name, file, the object's box as left, top, right, bottom in shares of the picture)."""
    import matplotlib.cbook

    hopper = matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
    return [
        ("the cup", DATA / "coffee.jpg", (0.30, 0.04, 0.70, 0.60)),
        ("the rocket", DATA / "rocket.jpg", (0.46, 0.30, 0.55, 1.0)),
        ("the face and cap", hopper, (0.29, 0.03, 0.73, 0.53)),
    ]


def test_the_class_token_looks_at_the_object():
    loaded = models.load("dinov2")
    for name, file, (left, top, right, bottom) in pictures():
        look = look_at(file, loaded)
        values = torch.tensor(look.values)
        rows = (torch.arange(look.rows) + 0.5) / look.rows
        columns = (torch.arange(look.columns) + 0.5) / look.columns
        inside = ((rows > top) & (rows < bottom))[:, None] & ((columns > left) & (columns < right))
        share = float(values[inside].sum() / values.sum())
        area = float(inside.float().mean())
        print(f"{name}: {share:.2f} of the class token's look on {area:.2f} of the picture")
        assert share > 1.8 * area


# --- Whisper: the moment at which a word is said ----------------------------------------------

EXAMPLE = DATA.parent.parent / "examples" / "whisper_words.py"
SPOKEN = (
    ("yellow", 0.002, 0.465),
    ("dogs", 0.869, 1.349),
    ("and", 1.741, 2.149),
    ("seven", 2.554, 3.072),
    ("happy", 3.479, 3.945),
    ("children", 4.391, 4.940),
    ("are", 5.336, 5.713),
    ("walking", 6.108, 6.698),
    ("home", 7.110, 7.586),
    ("together", 8.024, 8.609),
)


def test_word_starts_are_those_of_transformers():
    loaded = models.load("whisper")
    sound = models.read_sound(DATA / "sentence.wav")
    heard = models.transcribe(loaded, sound).tokens.words()
    frames = round(sound.seconds / 0.02)
    mask = torch.zeros(1, 3000, dtype=torch.long)
    mask[:, : 2 * frames] = 1
    # With return_timestamps, as its pipeline's word timestamps ask for too, the first word is
    # written after a mark of time, so that its generate has a row for each word.
    with torch.no_grad():
        found = loaded.model.generate(
            **sound.inputs(),
            attention_mask=mask,
            return_timestamps=True,
            return_token_timestamps=True,
            return_dict_in_generate=True,
            do_sample=False,
        )
    written = [int(token) for token in found["sequences"][0]]
    pieces = [loaded.tokenizer.decode([token]).strip() for token in written]
    # as its tokenizer reads them: a token begins at the time of the one before it
    ends = [0.0, *found["token_timestamps"][0].tolist()]
    theirs = [(piece, ends[at]) for at, piece in enumerate(pieces) if piece.isalnum()]
    labels = [label for label in heard.labels if label.isalnum()]
    assert [piece for piece, _ in theirs] == labels
    ours = list(runpy.run_path(str(EXAMPLE))["word_times"](DATA / "sentence.wav"))
    for (word, start, _), (label, begin) in zip(ours, theirs, strict=True):
        assert word == label
        assert abs(start - begin) <= 0.021, word
        print(f"{word}: {start:.2f} s, transformers {begin:.2f} s")


@pytest.mark.parametrize("clip", ["sentence", "words"])
def test_every_start_is_that_of_transformers_on_the_same_rows(clip):
    loaded = models.load("whisper")
    sound = models.read_sound(DATA / f"{clip}.wav")
    heard = models.transcribe(loaded, sound)
    loaded.model.set_attn_implementation("eager")
    with torch.no_grad():
        output = loaded.model(**sound.inputs(), **heard.inputs(), output_attentions=True)

    class Generated:
        """What it takes from a generate: rows from the one that chose the first word."""

        sequences = torch.tensor([heard.tokens.ids])
        cross_attentions = ([layer[:, :, :-1] for layer in output.cross_attentions],)

        def __contains__(self, name: str) -> bool:
            return False

    heads = loaded.model.generation_config.alignment_heads
    frames = round(sound.seconds / 0.02)
    theirs = loaded.model._extract_token_timestamps(
        Generated(), heads, num_frames=2 * frames, num_input_ids=1
    )
    with torch.no_grad(), watch(loaded.model) as seen:
        loaded.model(**sound.inputs(), **heard.inputs())
    rows: Tensor = attention(crossed(seen), heads)
    ours = torch.tensor(aligned(rows[..., :frames]).starts) * 0.02
    torch.testing.assert_close(ours, theirs[0, 1:-1], atol=0.021, rtol=0)


def test_words_are_listened_for_while_they_are_said():
    look = listen(DATA / "words.wav")
    assert [word.label.lower() for word in look.words] == [word for word, _, _ in SPOKEN]
    example = runpy.run_path(str(EXAMPLE))["word_times"](DATA / "words.wav")
    starts = {word: round(start, 2) for word, start, _ in example}
    assert starts == {word.label: word.start for word in look.words}
    for heard, (word, start, end) in zip(look.words, SPOKEN, strict=True):
        assert start <= heard.peak <= end, word
        # frames of 20 ms
        assert start - 0.02 <= heard.start <= end, word
    # the rows of a word lie on its own time; "and" and "are" look further ahead, at the next word
    edges = torch.linspace(0, look.duration, len(look.values[0]) + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    values = torch.tensor(look.values)
    said = torch.stack([(middles >= a) & (middles <= b) for _, a, b in SPOKEN]).float()
    shares = values @ said.T  # [words, times of words]
    best = shares.argmax(1) == torch.arange(len(SPOKEN))
    assert {word for (word, _, _), own in zip(SPOKEN, best) if not own} <= {"and", "are"}
    own = float((shares.diagonal() / values.sum(1)).mean())
    even = float(said.mean())
    print(f"on its own word: {own:.2f} of a row; spread evenly: {even:.2f}")
    assert own > 4 * even
