"""Scores: every query against every key."""

from __future__ import annotations

from eyeline.lesson.data import Block, Screen
from eyeline.lesson.stage import Stage
from eyeline.lesson.writing import matrix, shape


def score(stage: Stage) -> Screen:
    """A21, B7, B8."""
    write, ledger = stage.write, stage.ledger
    i, j = 0, min(1, ledger.n - 1)
    q, k = ledger["Q"][i], ledger["K"][j]
    shown = min(4, len(q))
    terms = " + ".join(f"({a:.4f})({b:.4f})" for a, b in zip(q[:shown].tolist(), k.tolist()))
    rest = " + …" if len(q) > shown else ""
    scores = ledger["scores"]
    blocks: list[Block] = [
        write.says(
            "A score is a dot product: {q} · {k} gives {s}. Entry (i, j) is how well the query of"
            " word i matches the key of word j.",
            "打分就是点积：{q} · {k} 得到 {s}。第 (i, j) 格是词 i 的查询与词 j 的键有多匹配。",
            "B7",
            "B8",
            q=shape(ledger["Q"]),
            k=shape(ledger["K"].mT),
            s=shape(scores),
        ),
        *stage.code("score", lines=("B7",)),
        matrix("scores", scores, ledger.words, ledger.words, lines=("B7", "B8")),
        write.says(
            "Row {i}, column {j}, “{a}” against “{b}”: {terms}{rest} = {value:.4f}",
            "第 {i} 行第 {j} 列，“{a}”对“{b}”：{terms}{rest} = {value:.4f}",
            "B8",
            i=i,
            j=j,
            a=ledger.words[i],
            b=ledger.words[j],
            terms=terms,
            rest=rest,
            value=scores[i, j].item(),
        ),
        write.says(
            "n words make n × n scores: {n} × {n} = {count} here, hence O(n²). attn[i][j] in the"
            " end"
            " says how much word i attends to word j. Step {stream} shows how eyeline does without"
            " ever storing them.",
            "n 个词有 n × n 个打分：这里 {n} × {n} = {count}，所以是 O(n²)。最后 attn[i][j] 就是词"
            " i 对"
            "词 j 的关注程度。第 {stream} 步演示 eyeline 怎样从不存下它们。",
            "A21",
            n=ledger.n,
            count=ledger.n**2,
            stream=stage.step("stream"),
        ),
        write.change(
            "What would change if a query were twice as long? Its row of scores would be twice as"
            " large, {a:.4f} in place of {b:.4f} at ({i}, {j}), and its weights sharper.",
            "如果某个查询的每个数都翻倍呢？它那一行打分都翻倍，({i}, {j}) 处由 {b:.4f} 变成"
            " {a:.4f}，权重也更集中。",
            a=2 * scores[i, j].item(),
            b=scores[i, j].item(),
            i=i,
            j=j,
        ),
    ]
    return stage.screen("score", write.term("score"), blocks)
