"""One table of phrases, English and Chinese, for every command, page and figure."""

from __future__ import annotations

import locale
import os

from eyeline.errors import EyelineError

LANGUAGES = ("en", "zh")

# key: (English, Chinese). The terms are those of the field and of the courses that teach it:
# 查询 query · 键 key · 值 value · 打分 score · 缩放 scale · 掩码 mask · 归一化 normalise ·
# 注意力权重 weights · 加权求和 weighted sum · 自注意力 self-attention · 多头 heads.
TABLE: dict[str, tuple[str, str]] = {
    # terms
    "query": ("query", "查询"),
    "key": ("key", "键"),
    "value": ("value", "值"),
    "score": ("score", "打分"),
    "scale": ("scale", "缩放"),
    "mask": ("mask", "掩码"),
    "causal mask": ("causal mask", "因果掩码"),
    "normalise": ("normalise", "归一化"),
    "weights": ("attention weights", "注意力权重"),
    "weighted sum": ("weighted sum", "加权求和"),
    "self-attention": ("self-attention", "自注意力"),
    "heads": ("heads", "多头"),
    "head": ("head", "头"),
    "layer": ("layer", "层"),
    # the first lines of a look
    "facts": (
        "{layers} layers × {heads} heads · {tokens} tokens, {words} {unit} · {seconds} s",
        "{layers} 层 × {heads} 头 · {tokens} 个 token，{words} 个{unit} · {seconds} 秒",
    ),
    "unit words": ("words", "词"),
    "unit pieces": ("pieces", "词片"),
    "never stored": (
        "Read in strips of rows: the whole ({layers}×{heads}×{tokens}×{tokens}, {size})"
        " was never stored.",
        "注意力权重按行分条读取；整个矩阵（{layers}×{heads}×{tokens}×{tokens}，{size}）从未保存。",
    ),
    "counted": ("Layers, heads and words are counted from 0.", "层、头和词都从 0 数起。"),
    "unknown": (
        "{model} does not know {unknown} of the {words} words ({share}), so it sees little of this"
        " text. A model that reads it:",
        "{words} 个词中有 {unknown} 个（{share}）{model} 不认识，所以它几乎看不到这段文字。"
        "能读懂它的模型：",
    ),
    "unknown, no other": (
        "{model} does not know {unknown} of the {words} words ({share}), so it sees little of this"
        " text.",
        "{words} 个词中有 {unknown} 个（{share}）{model} 不认识，所以它几乎看不到这段文字。",
    ),
    # how attention is spent
    "spend": (
        "Where the attention goes, over all heads",
        "所有的头合起来，注意力用在哪里",
    ),
    "special": ("special tokens", "特殊 token"),
    "special, causal": ("special or first tokens", "特殊 token 或首个 token"),
    "self": ("the word itself", "词自身"),
    "near": ("next door (±1)", "相邻的词（±1）"),
    "words": ("other words", "其他词"),
    # the overview
    "overview": ("Each head's {reading}, {unit}", "每个头的{reading}（{unit}）"),
    "reading words": ("share on other words", "注意力落在其他词上的份额"),
    "reading special": ("share on special or first tokens", "落在特殊或首个 token 上的份额"),
    "reading self": ("share on the word itself", "落在词自身上的份额"),
    "reading near": ("share on the words next door", "落在相邻词上的份额"),
    "reading entropy": ("entropy (small = sharp)", "熵（小 = 集中）"),
    "reading distance": ("mean distance", "平均距离"),
    "unit percent": ("%", "%"),
    "unit of entropy": ("nats", "奈特"),
    "unit of distance": ("tokens", "token"),
    "marked": ("[ ] is drawn below", "[ ] 画在下面"),
    # the map
    "map leads": (
        "{head} leads · rows ask (query), columns are looked at (key)",
        "{head} 领先 · 行是提问的词（查询），列是被看的词（键）",
    ),
    "map asked": (
        "{head} · rows ask (query), columns are looked at (key)",
        "{head} · 行是提问的词（查询），列是被看的词（键）",
    ),
    "map token": (
        "{head} has the strongest look of “{token}” · rows ask, columns are looked at",
        "{head} 里“{token}”看得最专注 · 行是提问的词（查询），列是被看的词（键）",
    ),
    "map scale": (
        "Shade: square root of the weight, darkest = {most}.",
        "深浅：权重的平方根，最深 = {most}。",
    ),
    "map special": (
        "Dimmed columns take {names} of this head's attention.",
        "变淡的列占本头注意力的份额：{names}。",
    ),
    "map pooled": (
        "{words} {unit} drawn as {cells} cells: columns added, rows averaged.",
        "{words} 个{unit}画成 {cells} 格：列相加，行取平均。",
    ),
    "most": ("looks most at", "最常看"),
    "most of all": (
        "Where words look most in {head}: the {count} strongest of {words}",
        "{head} 中各词最常看哪里：{words} 个中最强的 {count} 个",
    ),
    "most each": ("Where each word looks most in {head}", "{head} 中每个词最常看哪里"),
    # the fan
    "fan": ("“{token}” (word {index}) in {head}", "{head} 中的“{token}”（第 {index} 个）"),
    "looks at": ("looks at", "它看谁"),
    "fan looks at": ("“{token}” looks at", "“{token}”看谁"),
    "looked at by": ("is looked at by", "谁看它"),
    "several": (
        "“{token}” stands here {count} times ({places}); this is the first."
        " Another one: --token {other}",
        "“{token}”出现 {count} 次（{places}）；这是第一个。换一个：--token {other}",
    ),
    "pairs": (
        "Strongest looks of “{token}” at another word, over all {count} heads",
        "“{token}”看别的词：全部 {count} 个头里最强的几对",
    ),
    "nothing": ("no other word", "没有别的词"),
    # what to try next
    "next": ("Try next", "接着试试"),
    "next, again": (
        "Try next, the same text on standard input",
        "接着试试（文字同样从标准输入给出）",
    ),
    "next token": ("whom “{token}” looks at", "“{token}”在看谁"),
    "next sharp": ("the sharpest heads instead", "改看最集中的头"),
    "next head": ("another head", "另一个头"),
    "next model": ("the same text in {model}", "同一段文字，换 {model}"),
    "next page": ("a page to keep or send", "存成一个网页"),
    "next figure": ("a figure for a paper", "存成论文插图"),
    "written": ("Wrote {path}", "已写入 {path}"),
    # a model without some heads
    "without facts": (
        "{tokens} tokens · without {heads}: their output is 0",
        "{tokens} 个 token · 关掉 {heads}：输出置 0",
    ),
    "without next": ("What comes next after “{text}”", "“{text}”之后的下一个 token"),
    "without before": ("before", "之前"),
    "without after": ("without", "关掉后"),
    "without moved": (
        "{share} of all probability went to other tokens.",
        "全部概率中有 {share} 转到了别的 token。",
    ),
    "without next head": ("what the head looks at", "这个头在看什么"),
    # a picture
    "picture facts": (
        "{name}, {width} × {height} pixels · {layers} layers × {heads} heads · {tokens} tokens:"
        " CLS and {rows} × {columns} patches · {seconds} s",
        "{name}，{width} × {height} 像素 · {layers} 层 × {heads} 头 · {tokens} 个 token："
        "CLS 和 {rows} × {columns} 个图块 · {seconds} 秒",
    ),
    "picture never stored": (
        "One row of each head was read: the whole ({layers}×{heads}×{tokens}×{tokens}, {size})"
        " was never stored. Rows and columns are counted from 0, from the top left.",
        "每个头只读了一行；整个矩阵（{layers}×{heads}×{tokens}×{tokens}，{size}）从未保存。"
        "行和列从左上角、从 0 数起。",
    ),
    "picture map": ("What {token} looks at, {place}", "{token} 在看哪里，{place}"),
    "picture map, heads": (
        "What {token} looks at, {place}, the average of its heads",
        "{token} 在看哪里，{place}，各头的平均",
    ),
    "picture scale": ("Shade: the weight, darkest = {most}.", "深浅：权重，最深 = {most}。"),
    "picture half": (
        "Half of what the patches get lies on {half} of them; CLS itself gets {rest}.",
        "图块所得的一半落在其中 {half} 的图块上；CLS 自身得 {rest}。",
    ),
    "picture most": ("Most: {names}.", "最多的图块：{names}。"),
    "picture heads": (
        "The share of the patches that half of {token}'s look lies on, % (small = sharp)",
        "{token} 的注意力有一半落在百分之几的图块上（小 = 集中）",
    ),
    "picture next patch": ("what this patch looks at", "这个图块在看哪里"),
    "picture next whole": ("what the whole picture's token looks at", "整幅图的 token 在看哪里"),
    "picture next head": ("its sharpest head alone", "只看其中最集中的头"),
    "picture next figure": ("the heat map over the picture", "把热图叠在图上"),
    # speech
    "sound facts": (
        "{name}, {duration} s · {layers} layers · {tokens} tokens · {seconds} s",
        "{name}，{duration} 秒 · {layers} 层 · {tokens} 个 token · 用时 {seconds} 秒",
    ),
    "sound channels": (
        "Its {channels} channels were averaged.",
        "它的 {channels} 个声道取了平均。",
    ),
    "sound cut": (
        "It is {whole} s long; the first {longest} s were taken.",
        "全长 {whole} 秒，只取开头 {longest} 秒。",
    ),
    "sound rate": (
        "Its {before} samples a second were brought to {after}.",
        "采样率从每秒 {before} 次换算到 {after} 次。",
    ),
    "sound heard": ("What it heard", "听到的话"),
    "sound nothing": ("no words", "没有词"),
    "sound map": (
        "Where in time it listened for each word · {heads}",
        "写每个词时听的是哪一段 · {heads}",
    ),
    "sound known heads": (
        "the average of the {count} heads that follow the sound",
        "跟随声音的 {count} 个头的平均",
    ),
    "sound heads": ("the average of {names}", "{names} 的平均"),
    "sound start": ("start", "开始"),
    "sound starts": (
        "Starts are in seconds, by dynamic time warping of these rows.",
        "开始时间以秒计，由这些行的动态时间规整得出。",
    ),
    "sound beyond": (
        "{share} of the attention lies past the end, in the silence that fills 30 s.",
        "{share} 的注意力落在结尾之后，在补满 30 秒的静音里。",
    ),
    "sound next head": ("one head alone", "只看一个头"),
    # a text that is written on
    "generated": ("Written on by the model, marked + below", "模型续写的部分（下面标 +）"),
    "generated page": ("Written on by the model", "模型续写的部分"),
    # the lesson
    "lesson title": ("Attention, step by step: {text}", "注意力，一步一步看：{text}"),
    "lesson code": ("All the code", "全部代码"),
    "lesson next": ("Enter: the next step · q: stop", "回车：下一步 · q：退出"),
    # the page
    "title": ("Where {model} looks", "{model} 在看哪里"),
    "text": ("The text", "文字"),
    "page made": ("Made by eyeline.", "由 eyeline 生成。"),
    "shortened": ("… ({count} characters)", "……（共 {count} 个字符）"),
}


class Phrases:
    """The phrases of one language, called by key with the values they name.

    >>> Phrases("zh")("heads"), Phrases("en")("next model", model="SmolLM2")
    ('多头', 'the same text in SmolLM2')
    """

    def __init__(self, lang: str) -> None:
        self.lang = lang
        self._column = LANGUAGES.index(lang)

    def __call__(self, key: str, **values: object) -> str:
        """The phrase, filled in."""
        return TABLE[key][self._column].format(**values)


def language(asked: str | None = None) -> str:
    """The language to speak: the one asked for, else the locale's; 'en' or 'zh'.

    The locale is read as POSIX has it: LC_ALL, then LC_MESSAGES, then LANG; where none of them is
    set (Windows), what the system reports.

    >>> language("zh")
    'zh'
    """
    if asked:
        if asked not in LANGUAGES:
            raise EyelineError(f"There is no language “{asked}”: choose {' or '.join(LANGUAGES)}.")
        return asked
    named = next((v for v in map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG")) if v), None)
    if named is None:
        named = locale.getlocale()[0] or ""
    # Windows reports a language by its English name.
    return "zh" if named.lower().startswith(("zh", "chinese")) else "en"
