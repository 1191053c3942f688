"""A look-up in a dictionary, exact and soft, and how it is trained."""

from __future__ import annotations

import torch

from eyeline.lesson.data import Block, Code, Screen, Table
from eyeline.lesson.stage import Stage
from eyeline.lesson.writing import numbers

# A dictionary of four entries: keys in a plane, animals to the right and vehicles above; values
# are how large the thing is, in metres.
ENTRIES = {"cat": (1.0, 0.0), "dog": (0.9, 0.4), "car": (0.0, 1.0), "bus": (-0.4, 0.9)}
METRES = (0.5, 0.8, 4.5, 12.0)
ASKED, QUERY = "kitten", (0.98, 0.05)
SHARPER = (1.0, 4.0, 16.0)


def lookup(stage: Stage) -> Screen:
    """A1 to A4."""
    write = stage.write
    pick = write.pick
    K, V = torch.tensor(list(ENTRIES.values())), torch.tensor(METRES)
    match = K @ torch.tensor(QUERY)
    try:
        exact = str(dict(zip(ENTRIES, METRES))[ASKED])
    except KeyError as error:
        exact = f"KeyError: {error}"
    rows = []
    for factor in SHARPER:
        weights = (match * factor).softmax(-1)
        found = (weights @ V).item()
        rows.append((f"× {factor:g}", *(f"{w:.4f}" for w in weights.tolist()), f"{found:.2f}"))
    best = int(match.argmax())
    sharp = torch.nn.functional.one_hot(match.argmax(), len(ENTRIES))
    rows.append(("× ∞", *(f"{w:.4f}" for w in sharp.tolist()), f"{METRES[best]:.2f}"))
    blocks: list[Block] = [
        write.says(
            "Attention is a look-up that is soft and therefore differentiable. A dictionary has"
            " keys (its entries) and values (what stands under them); one comes with a query and"
            " takes the value of the best match. Asked for “{asked}”, which is no entry, the exact"
            " look-up answers {exact}.",
            "注意力是一次可微的软检索。查字典：带着查询（query）来，键（key）是词条，值（value）是"
            "词条下的解释，取走最匹配的那一条。查“{asked}”，字典里没有，精确检索只能回答 {exact}。",
            "A1",
            "A2",
            asked=ASKED,
            exact=exact,
        ),
        write.says(
            "The soft one answers: it matches the query with every key and takes the mean of all"
            " values, weighted by the match. The sharper the scores, the nearer it comes to the"
            " exact look-up of {best} (values are metres):",
            "软检索总有回答：拿查询和每个键打分，再按匹配程度对所有值取加权平均，而不是只取最好的"
            "一个。打分放得越大，就越接近精确检索（{best}）；值的单位是米：",
            "A3",
            best=list(ENTRIES)[best],
        ),
        Table(
            (pick("scores", "打分"), *ENTRIES, pick("answer", "回答")), tuple(rows), ("A2", "A3")
        ),
        *_trained(stage),
    ]
    title = pick("A soft look-up", "软检索")
    return stage.screen("lookup", title, blocks)


def _trained(stage: Stage) -> list[Block]:
    """One step of gradient descent on W_Q that raises one weight."""
    write, toy = stage.write, stage.toy
    i, j, rate = 0, toy.n - 1, 0.02
    W_Q = toy["W_Q"].clone().requires_grad_()
    with torch.enable_grad():
        logs = (toy["X"] @ W_Q @ toy["K"].T * toy.scale).log_softmax(-1)
        (-logs[i, j]).backward()
    assert W_Q.grad is not None
    before = logs.detach().exp()
    stepped = W_Q.detach() - rate * W_Q.grad
    after = (toy["X"] @ stepped @ toy["K"].T * toy.scale).softmax(-1)
    words = toy.words
    code = f"# loss = -weights[{i}, {j}].log(); W_Q = W_Q - {rate} * W_Q.grad"
    return [
        write.says(
            "The match is computed, so it can be trained. In “{text}”, one step down the gradient"
            " at"
            " W_Q, to make “{a}” look more at “{b}”: the weight goes from {before:.4f} to"
            " {after:.4f}, the row"
            " from {row} to {new}.",
            "匹配程度是算出来的，所以可以训练。在“{text}”里，对 W_Q 做一步梯度下降，让“{a}”多"
            "看“{b}”："
            "权重从 {before:.4f} 变成 {after:.4f}，整行从 {row} 变成 {new}。",
            "A4",
            text=" ".join(words[:8]),
            a=words[i],
            b=words[j],
            before=before[i, j].item(),
            after=after[i, j].item(),
            row=numbers(before[i]),
            new=numbers(after[i]),
        ),
        Code((code,), ("A4",)),
        write.change(
            "What would change if only the best match were taken? A small step of W_Q would change"
            " nothing until the best match jumps: there is no gradient to follow.",
            "如果只取最匹配的那一个呢？W_Q 动一小步什么都不会变，直到最佳匹配突然跳走："
            "没有梯度可循。",
        ),
    ]
