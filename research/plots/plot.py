"""Draws figures and fills tables from the reports in folders of research/results, or draws profiles:

python3 research/plots/plot.py research/results/h200 research/results/evaluation
python3 research/plots/plot.py fashion.csv
"""

import sys
from pathlib import Path

import evaluation_page
import guarantees
import h200
import ingest
import planner
import profiles
from report import NotMeasured, PlotError, Reports

# By folder: sections are (name, table, drawing). A drawing returns the names of its PNGs.
PAGES = {"evaluation": evaluation_page, "guarantees": guarantees, "h200": h200, "ingest": ingest, "planner": planner}


def main(arguments: list[str]) -> int:
    if not arguments:
        print("usage: plot.py FOLDER|PROFILE.csv...", file=sys.stderr)
        return 2
    try:
        for path in map(Path, arguments):
            profiles.plot(path) if path.suffix == ".csv" else plot(path)
    except (PlotError, OSError) as e:
        print(f"plot: {e}", file=sys.stderr)
        return 1
    return 0


def plot(folder: Path) -> None:
    """Draws every figure whose reports are in folder, then fills its page."""
    page = PAGES.get(folder.resolve().name)
    if page is None:
        raise PlotError(f"{folder}: unknown page; want a folder {', '.join(PAGES)}")
    for path in sorted(folder.glob("*.json")):
        if path.stem not in page.REPORTS:
            raise PlotError(f"{path}: unknown report; want {', '.join(page.REPORTS)}")
    reports = Reports(folder)
    texts = {name: section(reports, name, table, draw) for name, table, draw in page.SECTIONS}
    fill(folder / "README.md", texts)


def section(reports: Reports, name: str, table, draw) -> tuple[list[str], str]:
    """Returns the names of a section's figures, and its table."""
    figures: list[str] = []
    if draw:
        try:
            figures = draw(reports)
        except NotMeasured as e:
            print(f"no figure for {name}: {e}")
    try:
        return figures, table(reports)
    except NotMeasured:
        return [], "Not measured yet.\n"


def fill(page: Path, texts: dict[str, tuple[list[str], str]]) -> None:
    """Writes figures and tables into a page, each between its two marks:

    <!-- begin overhead -->
    <!-- end overhead -->
    """
    if not page.exists():
        print(f"no page {page}: tables are not written")
        return
    old = text = page.read_bytes().decode()
    for name, (figures, table) in texts.items():
        shown = "".join(f"![{f}]({f}.png)\n" for f in figures)
        text = between(page, text, name, f"{shown}\n{table}" if shown else table)
    if text != old:
        print(page)
        page.write_bytes(text.encode())


def between(page: Path, text: str, name: str, new: str) -> str:
    """Replaces the text between the marks of a section."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, begun, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        missing = end if begun else begin.strip()
        raise PlotError(f"{page}: has no line {missing} for section {name}")
    return f"{before}{begin}\n{new}\n{end}{after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
