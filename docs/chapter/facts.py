"""What the chapter holds besides drawn numbers: sources, words in two languages, a real model."""

from __future__ import annotations

from functools import cache

import torch

import eyeline
from eyeline.lesson.measured import SURE
from eyeline.looking.data import Look
from eyeline.models import load

WIDE, WIDE_HEADS = 64, 4  # the layer of an exercise
TEXT = "The keys to the old cabinet are on the table because they were too heavy to carry."
SWAPPED = "The key to the old cabinets is on the table because they were too heavy to carry."
LAYER, HEAD, WORD = 3, 1, "they"

ENTRIES = {"en": ("cat", "dog", "car", "bus"), "zh": ("猫", "狗", "汽车", "公交车")}
ASKED = {"en": "kitten", "zh": "小猫"}

WORDS = {
    "key": {"en": "key", "zh": "键"},
    "score": {"en": "score", "zh": "打分"},
    "scores": {"en": "scores", "zh": "打分"},
    "metres": {"en": "value (metres)", "zh": "值（米）"},
    "answer": {"en": "answer", "zh": "回答"},
    "yes": {"en": "÷ √d", "zh": "除以 √d"},
    "no": {"en": "no", "zh": "不缩放"},
}
SATURATION = {
    "en": (
        "d",
        "scaled",
        "variance of the scores",
        f"rows with a weight over {SURE:g}",
        "mean entropy",
        "gradient at a row of scores (median)",
        "gradient at W_Q",
    ),
    "zh": (
        "d",
        "缩放",
        "打分的方差",
        f"有权重超过 {SURE:g} 的行",
        "平均熵",
        "打分处的梯度（各行中位数）",
        "W_Q 处的梯度",
    ),
}

SOURCES = {
    "bahdanau": "Bahdanau, Cho, Bengio: [Neural machine translation by jointly learning to align"
    " and translate](https://arxiv.org/abs/1409.0473), 2014",
    "vaswani": "Vaswani et al.: [Attention is all you need](https://arxiv.org/abs/1706.03762),"
    " 2017, section 3.2",
    "bert": "Devlin et al.: [BERT](https://arxiv.org/abs/1810.04805), 2018",
    "gpt": "Radford et al.: [Language models are unsupervised multitask learners]"
    "(https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)"
    " (GPT-2), 2019",
    "online": "Milakov, Gimelshein: [Online normalizer calculation for softmax]"
    "(https://arxiv.org/abs/1805.02867), 2018",
    "rabe": "Rabe, Staats: [Self-attention does not need O(n²) memory]"
    "(https://arxiv.org/abs/2112.05682), 2021",
    "flash": "Dao et al.: [FlashAttention](https://arxiv.org/abs/2205.14135), 2022",
    "mqa": "Shazeer: [Fast transformer decoding: one write-head is all you need]"
    "(https://arxiv.org/abs/1911.02150), 2019",
    "gqa": "Ainslie et al.: [GQA](https://arxiv.org/abs/2305.13245), 2023",
    "rope": "Su et al.: [RoFormer](https://arxiv.org/abs/2104.09864), 2021",
    "clark": "Clark et al.: [What does BERT look at?](https://arxiv.org/abs/1906.04341), 2019",
    "jain": "Jain, Wallace: [Attention is not explanation](https://arxiv.org/abs/1902.10186), 2019",
    "wiegreffe": "Wiegreffe, Pinter: [Attention is not not explanation]"
    "(https://arxiv.org/abs/1908.04626), 2019",
    "induction": "Olsson et al.: [In-context learning and induction heads]"
    "(https://arxiv.org/abs/2209.11895), 2022",
    "d2l": "Zhang et al.: [Dive into deep learning](https://d2l.ai), chapter 11",
    "d2l.zh": "《[动手学深度学习](https://zh.d2l.ai)》第 10 章",
}


@cache
def seen(text: str, lang: str = "en") -> Look:
    """What one head of MiniLM does with a text, the word *they* followed."""
    return eyeline.look(text, layer=LAYER, head=HEAD, token=WORD, lang=lang)


def model() -> dict[str, str]:
    """Where *they* looks, in a text and in the one with keys and cabinet exchanged."""
    found = {
        "model.text": TEXT,
        "model.swapped": SWAPPED,
        "model.layer": str(LAYER),
        "model.head": str(HEAD),
        "model.word": WORD,
    }
    for name, text in (("model", TEXT), ("swapped", SWAPPED)):
        look = seen(text)
        assert look.fan is not None
        for at, target in enumerate(look.fan.looks_at[:2]):
            found[f"{name}.at.{at}"] = look.words[target.word]
            found[f"{name}.weight.{at}"] = f"{target.weight:.2f}"
    look = seen(TEXT)
    found["model.layers"], found["model.heads"] = str(look.layers), str(look.heads)
    found["model.all"] = str(look.layers * look.heads)
    found["pieces"] = str(len(load("minilm").tokens("I love NLP").ids))
    found |= _blurred()
    return found


def _blurred() -> dict[str, str]:
    """B21: the mean entropy of a real layer's heads, and the entropy of their average."""
    loaded = load("minilm")
    with torch.no_grad(), eyeline.watch(loaded.model) as watched:
        loaded.model(**loaded.inputs(loaded.tokens(TEXT)))
    heads = watched[LAYER][0].to_dense()
    spread = [torch.special.entr(w).sum(-1).mean().item() for w in (heads, heads.mean(0))]
    assert spread[0] < spread[1]
    return {"heads.own": f"{spread[0]:.2f}", "heads.mean": f"{spread[1]:.2f}"}
