"""The measured costs as the READMEs show them: tables and a picture, in both languages."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).resolve().parent.parent / "docs" / "assets"
FILES = {"en": ASSETS / "costs.svg", "zh": ASSETS / "costs.zh.svg"}

NAMES = {
    "en": {
        "eyeline": "eyeline, lazy weights",
        "sdpa": "torch SDPA, no weights",
        "flex": "FlexAttention, compiled, no weights",
        "dense": "softmax, dense weights",
        "keops": "KeOps, no weights",
        "eyeline_readings": "eyeline and readings",
        "dense_readings": "softmax and readings",
    },
    "zh": {
        "eyeline": "eyeline，惰性权重",
        "sdpa": "torch SDPA，没有权重",
        "flex": "编译的 FlexAttention，没有权重",
        "dense": "逐步 softmax，完整权重",
        "keops": "KeOps，没有权重",
        "eyeline_readings": "eyeline 加读数",
        "dense_readings": "逐步 softmax 加读数",
    },
}
ALL = ("eyeline", "sdpa", "flex", "dense", "keops")
FIGURES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # ways, ratios
    "attention": (ALL, ("eyeline/sdpa", "dense/eyeline")),
    "memory": (ALL, ()),
    "readings": (("eyeline_readings", "dense_readings"), ("dense_readings/eyeline_readings",)),
}
RATIOS = {
    "en": {
        "eyeline/sdpa": "eyeline ÷ SDPA",
        "dense/eyeline": "softmax ÷ eyeline",
        "dense_readings/eyeline_readings": "softmax ÷ eyeline",
    },
    "zh": {
        "eyeline/sdpa": "eyeline ÷ SDPA",
        "dense/eyeline": "逐步 ÷ eyeline",
        "dense_readings/eyeline_readings": "逐步 ÷ eyeline",
    },
}
LEFT_OUT = {
    "en": {"memory": "no room", "time": "too long", "": "not measured"},
    "zh": {"memory": "放不下", "time": "太久", "": "未测"},
}
AXES = {
    "en": ("tokens", "seconds", "MiB", "time of one call", "memory that a call adds"),
    "zh": ("词元数", "秒", "MiB", "一次调用的时间", "一次调用增加的内存"),
}
COLOURS = {
    "eyeline": "#c2410c",
    "sdpa": "#1d4ed8",
    "flex": "#0f766e",
    "dense": "#6b7280",
    "keops": "#a16207",
}
MARKERS = dict(zip(ALL, "os^Dv", strict=True))


def cell(row: dict[str, Any], way: str, figure: str, lang: str) -> str:
    """A median time, or a peak; or why there is none."""
    if way not in row["ms"]:
        reason = row.get("missing", {}).get(way, "")
        return LEFT_OUT[lang].get(reason, LEFT_OUT[lang][""])
    if figure == "memory":
        mib = row["peak_mib"][way]
        return LEFT_OUT[lang][""] if mib is None else f"{mib:,.0f} MiB"
    return f"{row['ms'][way]['median']:,.1f} ms"


def table(results: dict[str, Any], figure: str, lang: str) -> str:
    """A markdown table of the stored results; `figure` is one of FIGURES."""
    ways, ratios = FIGURES[figure]
    names = [NAMES[lang][way] for way in ways]
    lines = [("T", *names, *(RATIOS[lang][ratio] for ratio in ratios))]
    lines.append(("---:",) * len(lines[0]))
    for row in results["rows"]:
        cells = [cell(row, way, figure, lang) for way in ways]
        for ratio in ratios:
            found = row["ratio"].get(ratio)
            cells.append("–" if found is None else f"{found['median']:.2f}")
        lines.append((str(row["T"]), *cells))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def fill(text: str, results: dict[str, Any], lang: str) -> str:
    """The document with what stands between its figure marks renewed."""
    pattern = r"(<!-- figure:(\w+) -->\n).*?(<!-- /figure -->)"
    return re.sub(
        pattern,
        lambda m: f"{m[1]}{table(results, m[2], lang)}\n{m[3]}",
        text,
        flags=re.DOTALL,
    )


def pictures(results: dict[str, Any]) -> dict[Path, str]:
    """The plot of time and memory against the length, a file for each language."""
    return {path: plot(results, lang) for lang, path in FILES.items()}


def ended(results: dict[str, Any], way: str, last: int) -> str:
    """Why a way was left out of the lengths after its last one; "" where it was not."""
    after = [row for row in results["rows"] if row["T"] > last]
    return str(after[0]["missing"].get(way, "")) if after else ""


def plot(results: dict[str, Any], lang: str) -> str:
    """Both axes logarithmic: what grows with T² is twice as steep as what grows with T. SVG."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style = {"svg.fonttype": "none", "svg.hashsalt": "costs", "font.size": 9}
    tokens, seconds, mib, time_title, memory_title = AXES[lang]
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the reader's own fonts draw them
        figure = Figure(figsize=(8.0, 3.4), layout="constrained", facecolor="white")
        FigureCanvasSVG(figure)
        times, memory = figure.subplots(1, 2)
        for way in ALL:
            rows = [row for row in results["rows"] if way in row["ms"]]
            style_of = {"color": COLOURS[way], "marker": MARKERS[way], "markersize": 4}
            lengths = [row["T"] for row in rows]
            medians = [row["ms"][way]["median"] / 1e3 for row in rows]
            if rows:
                times.plot(lengths, medians, label=NAMES[lang][way], **style_of)
            known = [(row["T"], row["peak_mib"][way]) for row in rows if row["peak_mib"][way]]
            if known:
                memory.plot(*zip(*known), **style_of)
            for axes, line in ((times, list(zip(lengths, medians))), (memory, known)):
                if line and (reason := ended(results, way, line[-1][0])):
                    axes.annotate(
                        LEFT_OUT[lang].get(reason, ""),
                        line[-1],
                        (5, 3),
                        textcoords="offset points",
                        color=COLOURS[way],
                        fontsize=7,
                    )
        ticks = [row["T"] for row in results["rows"]]
        for axes, title, unit in ((times, time_title, seconds), (memory, memory_title, mib)):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(ticks, [str(T) if T < 1024 else f"{T // 1024}k" for T in ticks])
            axes.set_xlabel(tokens)
            axes.set_ylabel(unit)
            axes.set_title(title, fontsize=9)
            axes.grid(True, color="#e5e7eb", linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"
