"""The text of `docs/benchmarks.md`: what is worse first, then each benchmark.

Rules: the page says nothing that its results do not hold. A benchmark without results is named as
such. A page of the same results is the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.page_drawing import drawable
from bench.page_growth import curves_of
from bench.page_results import Bench, Run
from bench.page_rows import Figure, figure, number, times_text
from bench.page_texts import BENCHES, HEAD, REPEAT, About

Figures = Mapping[str, Sequence[Figure]]
CASES = "| case | OneLog | other side | | times | bar |\n|---|--:|--:|---|--:|--:|"


def figures_of(benches: Mapping[str, Bench]) -> dict[str, list[Figure]]:
    """The cases of each benchmark, in the order of the page."""
    names = [name for name in BENCHES if name in benches]
    names += [name for name in benches if name not in BENCHES]
    return {name: [figure(name, row) for row in benches[name].rows()] for name in names}


def page(benches: Mapping[str, Bench]) -> str:
    """All of it."""
    found = figures_of(benches)
    lines = [HEAD, *_worse(found), REPEAT]
    for name, figures in found.items():
        lines += _bench(benches[name], figures)
    missing = [name for name in BENCHES if name not in benches]
    if missing:
        lines += ["## Not measured yet", ""]
        lines += [f"- {BENCHES[name].title}: `{BENCHES[name].repeat}`" for name in missing]
        lines.append("")
    return "\n".join(lines)


def title_of(name: str) -> str:
    """A benchmark's title."""
    return BENCHES[name].title if name in BENCHES else name


def _worse(found: Figures) -> Iterator[str]:
    every = [one for figures in found.values() for one in figures]
    behind = sorted((one for one in every if one.is_behind), key=lambda one: one.times or 0)
    compared = sum(one.is_peer and one.theirs is not None for one in every)
    yield "## Where OneLog is worse than a peer\n"
    if behind:
        yield f"{len(behind)} of {compared} comparisons with a peer, the worst first.\n"
        yield "| benchmark | case | OneLog | peer | | times |\n|---|---|--:|--:|---|--:|"
        for one in behind:
            times = times_text(one.times or 0)
            yield (
                f"| {_link(one.bench)} | {one.name} | {_valued(one.ours, one.unit)} |"
                f" {_valued(one.theirs, one.unit)} | {one.side} | **{times}** |"
            )
        yield ""
    else:
        yield f"None of {compared} comparisons with a peer.\n"
    missed = [one for one in every if one.holds is False and not one.is_behind]
    barred = sum(one.holds is not None for one in every)
    yield "### Bars that do not hold\n"
    yield (
        f"{len(missed)} of {barred} bars, beside those of the cases above."
        if missed
        else f"None of {barred} bars, beside those of the cases above."
    )
    yield ""
    if missed:
        yield "| benchmark | case | OneLog | bar | beside |\n|---|---|--:|--:|---|"
        for one in missed:
            beside = f"{one.side}: {_valued(one.theirs, one.unit)}" if one.side else ""
            yield (
                f"| {_link(one.bench)} | {one.name} | {_valued(one.ours, one.unit)} |"
                f" {_valued(one.bar, one.unit)} | {beside} |"
            )
        yield ""


def _bench(bench: Bench, figures: Sequence[Figure]) -> Iterator[str]:
    about = BENCHES.get(bench.name, About(bench.name, "", (), f"make bench-{bench.name}"))
    yield f"## {about.title}\n"
    if about.what:
        yield about.what + "\n"
    if about.sides:
        yield "| side | durability |\n|---|---|"
        yield from (f"| {side} | {durability} |" for side, durability in about.sides)
        yield ""
    if drawable(figures) or curves_of(figures):
        yield f"![{about.title}](benchmarks/{bench.name}.svg)\n"
    if bench.name == "growth":
        yield from _growth(figures)
    yield CASES
    yield from map(_case, figures)
    yield ""
    yield f"Repeat it: `{about.repeat}`\n"
    told = " ".join((about.title, *(side for side, _durability in about.sides)))
    yield from (_origin(run, told) for run in reversed(bench.runs))
    yield ""


def _case(one: Figure) -> str:
    times = one.times
    told = "" if times is None else times_text(times)
    bar = _valued(one.bar, one.unit) + (" missed" if one.holds is False else "")
    side = _valued(one.theirs, one.unit) if one.side else ""
    mark = "**" if one.is_worse else ""
    return (
        f"| {mark}{one.name}{mark} | {_valued(one.ours, one.unit)} | {side} |"
        f" {one.side} | {mark}{told}{mark} | {bar.strip()} |".replace("****", "")
    )


def _growth(figures: Sequence[Figure]) -> Iterator[str]:
    yield "| what grows | | from | to | the last costs |\n|---|---|--:|--:|--:|"
    for curve in curves_of(figures):
        first, last = curve.points[0], curve.points[-1]
        yield (
            f"| {curve.kind} | {curve.side}, {curve.unit} | {number(first[1])} at"
            f" {first[0]:,.0f} | {number(last[1])} at {last[0]:,.0f} | {times_text(curve.rise)} |"
        )
    yield ""


def _origin(run: Run, about: str) -> str:
    """One line: when, which sources, which machine, and the versions of those that are named."""
    machine = run.machine
    parts = [f"Measured on {run.date.removesuffix(' UTC')[:16]} UTC, commit {run.commit}"]
    if machine:
        parts.append(f"{machine.get('cores', '?')} cores {machine.get('processor', '')}".strip())
        if "memory_gib" in machine:
            parts.append(f"{machine['memory_gib']} GiB")
        parts.append(str(machine.get("system", "")))
        if "sync_us" in machine:
            parts.append(f"write and fdatasync of 4 KB: {machine['sync_us']:,.0f} µs")
    parts += [
        f"{name} {version}"
        for name, version in run.versions.items()
        if name == "Python" or name in about
    ]
    told = f", {run.note}" if run.note else ""
    return f"- {'; '.join(part for part in parts if part)} ({len(run.rows)} cases{told})"


def _valued(value: float | None, unit: str) -> str:
    return "" if value is None else f"{number(value)} {unit}"


def _link(name: str) -> str:
    title = title_of(name)
    plain = "".join(sign for sign in title.lower() if sign.isalnum() or sign in " -_")
    return f"[{name}](#{plain.replace(' ', '-')})"
