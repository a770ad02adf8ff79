"""Test drawn figures: the numbers of their lines, their labels, and their stated origin."""

import re

import numpy as np
import pytest

from tests.figure_helpers import PROFILE, cell, stored_run

pytest.importorskip("seaborn", reason="figures need the plot extra")

from fairbench_papers.style import panels, paper_style, save
from fairbench_studies.dlpm import fig1, fig4, fig7, fig8, fig9, fig10, fig11, fig12
from fairbench_studies.dlpm.over_time import INTERVALS
from fairbench_studies.kit.rows import ROOT
from fairbench_studies.kit.values import label_on


@pytest.fixture(autouse=True)
def style():
    with paper_style():
        yield


def shown(axes):
    """Return the lines of a panel by legend label: [(x, y)] of each mark or corner."""
    return {
        line.get_label(): list(zip(*(np.asarray(d).tolist() for d in line.get_data()), strict=True))
        for line in axes.get_lines()
        if not line.get_label().startswith("_")
    }


def lines(axes):
    """Return every unlabelled line with more than one point."""
    return [
        list(zip(*(np.asarray(d).tolist() for d in line.get_data()), strict=True))
        for line in axes.get_lines()
        if line.get_label().startswith("_") and len(line.get_xdata()) > 1
    ]


def marks(axes):
    """Return every single mark: its position, and whether it is open."""
    return [
        ((line.get_xdata()[0], line.get_ydata()[0]), line.get_markerfacecolor() == "white")
        for line in axes.get_lines()
        if len(line.get_xdata()) == 1
    ]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def origin(figure):
    """Return the text below the figure as one line."""
    return " ".join(figure.get_supxlabel().split())


def title(figure):
    return figure.legends[0].get_title().get_text()


METRICS = {"service_rate_tok_s": 1000.0, "jain_index": 0.5, "jain_index_maxmin": 0.9}


class TestFig7:
    def cells(self, seeds=(0,)):
        return [
            cell(
                name, dp=dp, seeds=seeds, spread=0.1 if len(seeds) > 1 else 0.0,
                **METRICS | {"service_rate_tok_s": 1000.0 * dp * factor},
                victim_p50_s=10.0, victim_p99_s=20.0 * dp,
                at_least=["victim_p99_s"] if dp == 2 else [],
            )
            for name, factor in (("lpm", 2), ("d2lpm", 3))
            for dp in (1, 2)
        ]  # fmt: skip

    def test_there_is_a_panel_per_metric_with_a_line_per_scheduler(self):
        figure = fig7.draw(self.cells())
        rate, jain, p50, p99 = figure.axes
        assert lines(rate) == [[(1, 2.0), (2, 4.0)], [(1, 3.0), (2, 6.0)]]
        assert shown(jain)["max-min fair"] == [(1, 0.9), (2, 0.9)]
        assert lines(p50) == [[(1, 10.0), (2, 10.0)]] * 2
        assert lines(p99) == [[(1, 20.0), (2, 40.0)]] * 2
        assert legend(figure) == ["RR + LPM", "D²LPM", "max-min fair"]
        assert rate.get_ylabel() == "tot s1\n(program latency)"
        assert title(figure).startswith("DLPM Fig. 7")

    def test_lower_bounds_have_open_marks(self):
        *_, p99 = fig7.draw(self.cells()).axes
        assert marks(p99) == [((1, 20.0), False), ((2, 40.0), True)] * 2

    def test_a_figure_states_its_origin(self):
        text = origin(fig7.draw(self.cells()))
        assert text.startswith(f"simulated on {PROFILE}; seed 0. ")
        text = origin(fig7.draw(self.cells(seeds=(0, 1, 2))))
        assert text.startswith(
            f"simulated on {PROFILE}; seeds 0 to 2, mean and 95% interval (Student's t). "
        )

    def test_several_seeds_have_a_band(self):
        assert not fig7.draw(self.cells()).axes[1].collections
        assert fig7.draw(self.cells(seeds=(0, 1))).axes[1].collections

    def test_a_run_without_a_window_is_drawn_to_its_end(self):
        nothing = dict.fromkeys([*METRICS, "victim_p50_s", "victim_p99_s"])
        rate, jain, *_ = fig7.draw([cell("vtc", **nothing), *self.cells()]).axes
        assert len(lines(rate)) == 2
        assert shown(jain)["max-min fair"] == [(1, 0.9), (2, 0.9)]

    def test_an_undefined_latency_is_not_drawn(self):
        cells = [*self.cells(), cell("vtc", **METRICS, victim_p50_s=None, victim_p99_s=None)]
        p50 = fig7.draw(cells).axes[2]
        assert len(marks(p50)) == 4

    def whole(self, workload, pool, dp):
        return cell(
            "lpm", workload=workload, dp=dp, window="whole",
            settings={"engine": {"max_total_tokens": pool}},
            service_rate_tok_s=pool / 10, jain_index=0.4, jain_index_paper_window=0.7,
            victim_p50_s=1.0, victim_p99_s=2.0,
        )  # fmt: skip

    def test_runs_measured_to_their_ends_show_the_index_while_all_were_active(self):
        figure = fig7.draw([self.whole("tot", 20_000, dp) for dp in (1, 2)])
        rate, jain, *_ = figure.axes
        assert lines(jain) == [[(1, 0.7), (2, 0.7)]]
        assert (rate.get_xlabel(), legend(figure)) == ("replicas", ["RR + LPM"])
        assert "20,000 tokens" in origin(figure)

    def test_a_workload_run_with_several_pools_has_them_as_its_axis(self):
        pools = [self.whole("long-qa", pool, 4) for pool in (25_000, 50_000)]
        figure = fig7.draw([self.whole("tot", 20_000, 1), *pools])
        replicas, pool = figure.axes[0], figure.axes[4]
        assert lines(pool) == [[(25_000, 2.5), (50_000, 5.0)]]
        assert [replicas.get_xlabel(), pool.get_xlabel()] == ["replicas", "KV pool, 1000 tokens"]
        assert [tick.get_text() for tick in pool.get_xticklabels()] == ["25", "50"]


def test_fig1_has_throughput_over_fairness_and_names_the_quanta():
    values = {"jain_index": 0.5, "min_entitlement_ratio": 0.25, "service_rate_tok_s": 9000.0}
    cells = [cell("lpm", **values)] + [
        cell("dlpm", settings={"dlpm": {"quantum": quantum}}, **values | {"jain_index": jain})
        for quantum, jain in ((1000, 0.9), (50_000, 0.7))
    ]
    figure = fig1.draw(cells)
    left, right = figure.axes
    assert lines(left)[0] == [(0.9, 9.0), (0.7, 9.0)]
    assert lines(right)[0] == [(0.25, 9.0)] * 2
    assert [text.get_text() for text in left.texts] == ["1k", "50k"]
    assert not right.texts
    assert origin(figure).endswith("beside a point (left) is Q^u, 1,000 to 50,000 tokens.")
    assert legend(figure) == ["LPM", "DLPM"]  # nothing is routed on one GPU
    assert [row["quantum_tokens"] for row in fig1.rows(cells)] == [None, 1000, 50_000]
    assert [row["join"] for row in fig1.rows(cells)] == [None, "zero", "zero"]


def test_fig1_has_a_second_curve_of_newcomers_that_join_with_a_quantum():
    values = {"min_entitlement_ratio": 0.25, "service_rate_tok_s": 9000.0}
    cells = [
        cell("dlpm", settings={"dlpm": {"quantum": quantum, "join": join}}, jain_index=jain,
             **values)
        for join, quantum, jain in (
            ("zero", 1000, 0.9), ("zero", 50_000, 0.7), ("quantum", 1000, 0.95),
            ("quantum", 50_000, 0.8),
        )
    ]  # fmt: skip
    figure = fig1.draw(cells)
    left, _ = figure.axes
    assert lines(left) == [[(0.9, 9.0), (0.7, 9.0)], [(0.95, 9.0), (0.8, 9.0)]]
    assert [line.get_linestyle() for line in left.lines] == [":", "--"]
    assert [text.get_text() for text in left.texts] == ["1k", "50k"]  # each quantum once
    assert legend(figure) == ["DLPM", "DLPM, newcomers with a quantum"]
    assert [row["join"] for row in fig1.rows(cells)] == ["zero"] * 2 + ["quantum"] * 2


def test_fig10_has_a_line_over_the_quantum_and_level_lines():
    cells = [
        cell("d2lpm", scenario=scenario, settings={"d2lpm": {"worker_quantum": quantum}},
             service_rate_tok_s=quantum / 2, jain_index_paper_window=0.9)
        for scenario in ("s2", "none") for quantum in (2000, 40_000)
    ]  # fmt: skip
    level = {"service_rate_tok_s": 5000.0, "jain_index_paper_window": 0.6}
    cells.append(cell("lpm", scenario="s2", **level))
    figure = fig10.draw(cells)
    misbehaving, calm, jain, _ = figure.axes
    assert lines(misbehaving) == [[(2000, 1.0), (40_000, 20.0)]]
    assert shown(misbehaving)["RR + LPM"] == [(0, 5.0), (1, 5.0)]
    assert "RR + LPM" not in shown(calm)
    assert np.allclose(lines(jain), [[(2000, 0.9), (40_000, 0.9)]])  # a logarithmic axis rounds
    assert calm.get_title() == "all well-behaved"


def test_fig11_counts_clients():
    cells = [
        cell("vtc", clients=number, service_rate_tok_s=100.0 * number, cache_hit_rate=0.5)
        for number in (5, 50)
    ]
    rate, hit = fig11.draw(cells).axes
    assert lines(rate) == [[(5, 0.5), (50, 5.0)]]
    assert lines(hit) == [[(5, 50.0), (50, 50.0)]]


@pytest.mark.parametrize(
    ("scheduler", "replicas", "expected"),
    [("lpm", [1], "LPM"), ("lpm", [1, 2], "RR + LPM"), ("vtc", [1], "VTC"), ("new", [1], "new")],
)
def test_a_router_is_named_only_where_something_is_routed(scheduler, replicas, expected):
    assert label_on(scheduler, replicas) == expected


def test_fig11_leaves_room_above_the_highest_mark():
    cells = [cell("vtc", clients=n, service_rate_tok_s=9.0, cache_hit_rate=1.0) for n in (5, 50)]
    for axes in fig11.draw(cells).axes:
        top = max(y for line in lines(axes) for _, y in line)
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] > 1.03 * top


def test_fig7_says_that_preble_has_no_point_on_one_replica():
    values = dict.fromkeys((*fig7.COLUMNS, fig7.REACHABLE), 1.0)
    alone = [cell("lpm", dp=dp, **values) for dp in (1, 2)]
    with_preble = [cell("preble", dp=dp, **values) for dp in (1, 2)]
    for cells, said in ((alone, True), (alone[1:], False), ([*alone, *with_preble], False)):
        texts = [text.get_text() for axes in fig7.draw(cells).axes for text in axes.texts]
        assert texts == ["no Preble on one replica"] * said


def test_fig7_says_where_a_latency_is_undefined():
    values = METRICS | {"victim_p50_s": 1.0}
    cells = [
        cell("vtc", dp=dp, **values, victim_p99_s=None if dp == 2 else 2.0) for dp in (2, 4, 8)
    ]
    *others, p99 = fig7.draw(cells).axes
    assert [text.get_text() for text in p99.texts] == ["undefined at 2"]
    assert not any(axes.texts for axes in others)


def test_fig4_stacks_the_parts_of_the_overhead():
    points = [
        {"workers": workers, "waiting": waiting, "synchronisation_ms": 1.0, "match_ms": 2.0,
         "dispatch_ms": 1.0, "update_ms": 9.0, "decode_step_ms": 16.0}
        for workers, waiting in ((1, 200), (8, 50), (8, 200))
    ]  # fmt: skip
    timings = fig4.Timings(PROFILE, "a machine", 0, 5, points)
    figure = fig4.draw(timings)
    left, right = figure.axes
    assert [bar.get_y() + bar.get_height() for bar in left.patches] == [1, 1, 3, 3, 4, 4]
    assert [label.get_text() for label in left.get_xticklabels()] == ["1", "8"]
    assert [label.get_text() for label in right.get_xticklabels()] == ["50", "200"]
    assert [text.get_text() for text in right.texts] == ["25%", "25%"]
    assert shown(left)["one decode step"] == [(0, 16.0), (1, 16.0)]
    assert origin(figure) == (
        "bars: measured on a machine, 5 rounds, seed 0; decode step of 25 requests: "
        f"simulated on {PROFILE}"
    )
    assert [row["overhead_pct"] for row in fig4.rows(timings)] == [25.0] * 3


def test_fig4_is_the_same_from_its_stored_values(tmp_path):
    """The timings of results/ give the stored picture's numbers, and can be written again."""
    path = ROOT / "results" / "seeds" / "fig4.csv"
    timings = fig4.read_values(path)
    (judged,) = [row for row in fig4.rows(timings) if (row["workers"], row["waiting"]) == (8, 200)]
    assert round(judged["overhead_pct"], 1) == 38.9
    assert origin(fig4.draw(timings)).startswith("bars: measured on x86_64, Python 3.11.7, 50 rou")
    fig4.write_values(tmp_path / "again.csv", timings)
    assert (tmp_path / "again.csv").read_text() == path.read_text()


@pytest.mark.parametrize(
    ("module", "panels_a_column"), [(fig8, 2), (fig9, 3), (fig12, 2)], ids=lambda m: str(m)
)
def test_over_time_there_is_a_column_per_scheduler(tmp_path, module, panels_a_column):
    service = [
        {"client": "client-0", "start_s": 0.0, "end_s": 1.0, "steps": 1, "input_tokens": 3000,
         "extend_tokens": 2000},
    ]  # fmt: skip
    requests = [
        {"client": "client-0", "arrival_s": 0.0, "finish_s": 30.0},
        {"client": "client-1", "arrival_s": 39.5, "finish_s": 39.75},
    ]
    cells = [
        cell(name, run=stored_run(tmp_path / name, service, requests, duration=40.0, failed=failed),
             duration=40.0)
        for name, failed in (("lpm", 0), ("vtc", 7))
    ]  # fmt: skip
    for one, failed in zip(cells, (0, 7), strict=True):
        one.runs[0].summary.update({"duration": 40.0, "unfinished": failed})
    figure = module.draw(cells)
    assert len(figure.axes) == 2 * panels_a_column
    assert [axes.get_title() for axes in figure.axes[:2]] == [
        "LPM\nall done at 40 s",
        "VTC\ncut off at 40 s",
    ]
    roles = ": chat" if module is fig12 else ""
    assert legend(figure) == [f"client 0{roles}", f"client 1{roles}"]
    response = shown(figure.axes[0])
    assert response[f"client 0{roles}"][0] == (0.5, 30.0)
    assert response[f"client 1{roles}"][-1] == (39.5, 0.25)
    assert np.isnan(response[f"client 0{roles}"][1][1])
    rows = module.rows(cells)
    assert len(rows) == 2 * 2 * INTERVALS
    first = rows[0]
    assert (first["start_s"], first["end_s"], first["response_s"]) == (0.0, 1.0, 30.0)
    assert first.get("service_ktok_s", 3.0) == 3.0
    # Computed service counts when the step ends, at the beginning of the next interval.
    assert rows[1].get("actual_service_ktok_s", 2.0) == 2.0
    assert origin(figure).startswith(f"simulated on {PROFILE}; seed 0. Response:")


def test_pictures_have_only_characters_that_every_font_has(tmp_path):
    """Some fonts lack the minus sign that matplotlib draws by default (U+2212)."""
    figure, axes = panels(1, 1, 3.0, 2.0)
    axes[0][0].plot([-2, 2], [-0.5, 0.5])
    save(figure, [tmp_path / "negative.svg"])
    for path in (tmp_path / "negative.svg", *(ROOT / "plots").glob("*.svg")):
        text = path.read_text(encoding="utf-8")
        assert max(text) <= "\xff", path.name
    assert re.search(r">-\d", (tmp_path / "negative.svg").read_text())
