"""The plot of a run: ratios and rates that people can read at a glance."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.figures import Figure
from bench.report import number

PANELS = ("match_rate", "open_waitpoints", "batch_size", "latency", "http", "mailbox", "fan_out")
LEFT_OUT = "ceiling consume"  # twenty times the others: it would flatten them
WIDTH = 12.0
BAR_INCHES = 0.3


def draw(figures: Sequence[Figure], file: Path) -> None:
    """Draw one panel for each measured section of PANELS into `file`."""
    panels = [
        (name, found)
        for name in PANELS
        if (found := [f for f in figures if f.section == name and LEFT_OUT not in f.what])
    ]
    if not panels:
        return
    heights = [len(found) * BAR_INCHES + 0.8 for _, found in panels]
    layout = {"height_ratios": heights}
    canvas, axes = plt.subplots(
        len(panels), figsize=(WIDTH, sum(heights)), gridspec_kw=layout, squeeze=False
    )
    for (name, found), place in zip(panels, axes[:, 0], strict=True):
        bars(place, name, found)
    canvas.tight_layout()
    canvas.savefig(file, dpi=110)
    plt.close(canvas)


def bars(place: Axes, name: str, figures: Sequence[Figure]) -> None:
    """Draw the values of one section; ceilings are grey, spreads are lines."""
    figures = list(reversed(figures))
    values = [figure.value for figure in figures]
    low = [figure.value - min(figure.samples) for figure in figures]
    high = [max(figure.samples) - figure.value for figure in figures]
    colours = ["#b8bcc4" if f.what.startswith("ceiling") else "#2f6f9f" for f in figures]
    place.barh([f.what for f in figures], values, xerr=[low, high], color=colours, capsize=2)
    for row, figure in enumerate(figures):
        ratios = "  ".join(f"{ratio:.2f} of {of}" for of, ratio in figure.ratios.items())
        place.text(
            figure.value, row, f"  {number(figure.value)}  {ratios}", va="center", fontsize=7
        )
    place.set_title(name.replace("_", " "), loc="left", fontsize=10)
    place.set_xlabel(figures[0].unit, fontsize=8)
    place.tick_params(labelsize=7)
    place.margins(x=0.3)
    place.spines[["top", "right"]].set_visible(False)
