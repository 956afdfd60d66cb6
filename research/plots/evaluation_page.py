"""research/results/evaluation: the paper's figures and tables compared with ours, and whether its claims hold."""

import weights
from evaluation_figures import draw
from evaluation_tables import (
    FIGURES, TABLE2, TABLE3, batch_table, convergence_table, efficacy_table, knee_table, loads_table, machine_table, ready_table, report_table,
    streams_table, timeline_table, verdict_table,
)  # fmt: skip


def loads(name: str):
    return name, report_table(name, loads_table), draw(name)


SECTIONS = [
    ("machine", machine_table, None),
    ("verdicts", verdict_table, None),
    ("fig1", timeline_table("fig1"), draw("fig1")),
    ("fig2-3", report_table("fig2-3", knee_table), draw("fig2-3")),
    ("fig5-7", report_table("fig5-7", streams_table), draw("fig5-7")),
    loads("fig8"),
    loads("fig9"),
    ("table2", efficacy_table(TABLE2, ["fig8", "fig9"]), None),
    loads("fig10a"),
    loads("fig10b"),
    ("table3", efficacy_table(TABLE3, ["fig10a", "fig10b"]), None),
    loads("fig10-slo"),
    loads("fig10-large"),
    loads("fig11"),
    ("table4", ready_table, None),
    loads("fig12ab"),
    ("fig12c-14", report_table("fig12c-14", convergence_table), draw("fig12c-14")),
    ("fig15", timeline_table("fig15", with_end=True), draw("fig15")),
    ("fig16", timeline_table("fig16", with_end=True), draw("fig16")),
    ("table5", report_table("table5", batch_table), None),
    ("table1", weights.weights_table, weights.draw),
]
REPORTS = [*FIGURES, "weights"]
