"""The last screen: the whole flow, with this text's shapes and ranges, and what was learnt."""

from __future__ import annotations

from eyeline.lesson.data import Block, Box, Flow, Screen
from eyeline.lesson.stage import Stage, strongest
from eyeline.lesson.writing import shape, span


def flow(stage: Stage) -> Screen:
    """A29, A33, B19."""
    write, ledger = stage.write, stage.ledger
    term = write.term

    def project(name: str) -> Box:
        return box(name if stage.real else f"{name} = X·W_{name}", name)

    def box(title: str, name: str) -> Box:
        return Box(title, shape(ledger[name]), span(ledger[name]))

    raw = ledger["scores"] * ledger.scale
    mask = term("mask") if ledger.causal else write.pick("no mask", "无掩码")
    rows = (
        (box("X", "X"),),
        tuple(map(project, "QKV")),
        (box(f"{term('score')} Q·Kᵀ", "scores"),),
        (Box(f"{term('scale')} × {ledger.scale:.4g}", shape(raw), span(raw)),),
        (box(mask, "scaled"),),
        (box("softmax", "weights"),),
        (Box("· V", shape(ledger.head_output), span(ledger.head_output)),),
        (box("Z", "output"),),
    )
    blocks: list[Block] = [
        Flow(rows, ("A29",)),
        write.says(
            "In short: attention is a soft look-up. Queries are scored against keys, the scores are"
            " scaled, masked where need be and normalised, and the values are summed by the"
            " weights."
            " “{word}” took most from {most}.",
            "小结：注意力是软检索。查询与键打分，打分经过缩放、（需要时）掩码和归一化，再按权重把"
            "值加起来。"
            "“{word}”取得最多的是 {most}。",
            "A33",
            "B19",
            word=stage.word,
            most=strongest(ledger.words, stage.row("weights")),
        ),
        write.change(
            "What would change if one word of the text were another? Its own row and, through its"
            " key"
            " and value, every row that may see it. Try your own text.",
            "如果换掉一个词呢？它自己那一行会变；凡是能看到它的行，也会因它的键和值而变。用你自己"
            "的文字试试。",
        ),
    ]
    return stage.screen("flow", write.pick("The whole flow", "完整流程"), blocks)
