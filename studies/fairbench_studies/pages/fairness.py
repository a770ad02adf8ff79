"""The drawing of the example in docs/concepts/fairness.md: ``python studies fairness``.

The script writes plots/fairness.svg, which shows the demand, the service in order of arrival, and
the fair share of three clients.
"""

from __future__ import annotations

from fairbench.metrics.fairness import max_min
from fairbench_studies.kit.rows import ROOT

TOTAL = 12_000.0
DEMANDS = {"a": 2_000.0, "b": 5_000.0, "c": 20_000.0}
FIGURE = ROOT / "plots" / "fairness.svg"
COLOURS = {"asks for": "#bbbbbb", "order of arrival": "#d55e00", "max-min fair share": "#0072b2"}
SCALE = 0.024  # bar length in pixels per token/s


def series() -> dict[str, list[float]]:
    """Return demand, service and fair share of each client, in weighted tokens per second."""
    demands = list(DEMANDS.values())
    served = [demand * TOTAL / sum(demands) for demand in demands]
    return dict(zip(COLOURS, (demands, served, list(max_min(TOTAL, demands))), strict=True))


def drawn() -> str:
    """Return a horizontal bar chart, grouped by client, as SVG text."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 270" font-family="sans-serif"'
        ' font-size="13">',
        '<rect width="640" height="270" fill="white"/>',
    ]
    values = series()
    for row, client in enumerate(DEMANDS):
        top = 14 + 74 * row
        parts.append(f'<text x="12" y="{top + 36}">client {client}</text>')
        for step, (name, colour) in enumerate(COLOURS.items()):
            value, y = values[name][row], top + 20 * step
            width = value * SCALE
            parts.append(f'<rect x="80" y="{y}" width="{width:.1f}" height="16" fill="{colour}"/>')
            parts.append(f'<text x="{86 + width:.1f}" y="{y + 13}">{value:,.0f}</text>')
    for step, (name, colour) in enumerate(COLOURS.items()):
        x = 80 + 160 * step
        parts.append(f'<rect x="{x}" y="242" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="254">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Write plots/fairness.svg."""
    FIGURE.write_text(drawn(), encoding="utf-8")
