"""Write the same records in other forms: names, units, encodings and files.

``python -m tests.fuzz.fuzz_variants 500 [SEED]`` writes 24 requests in 500 forms, and reads each
with ``score`` and ``trace``. Either the numbers are equal, or the file is refused in one line.
Prints the counts of right, refused and wrong files.
"""

import csv
import gzip
import io
import json
import random
import sys
import tempfile
import zipfile
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from fairbench.errors import FairbenchError
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench_logs.records.column_names import NAMES, SYNONYMS
from fairbench_logs.scoring.records import read_scored

REQUESTS = 24
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
CALENDAR = {"iso": None, "zulu": UTC, "offset": timezone(timedelta(hours=5, minutes=30))}
DAY_S = 1_714_564_800
SHAPES = ("{}_{}", "{} ({})", "{}.{}", "{}[{}]")
CASES = (str, str.upper, str.title, lambda name: name.replace("_", " "))
PRETTY = {
    **{"inputtokens": "input_tokens", "prompttokens": "prompt_tokens", "starttime": "start_time"},
    **{"userid": "user_id", "timetofirsttoken": "time_to_first_token"},
    **{"e2elatency": "e2e_latency", "completiontokens": "completion_tokens"},
}
OTHERS = [
    *(("model", "m"), ("status", 200), ("status", "success"), ("region", "eu"), ("note", "")),
    *(("cost", 1.5), ("temperature", 0), ("total_tokens", 9_999), ("stream", True)),
    *(("error", None), ("error", ""), ("queue_time", 0.1), ("tpot", 3.0), ("worker", "http://w:1")),
    *(("finish_reason", "stop"), ("success", True), ("status_code", 200), ("exception", None)),
]


def records_of(rng):
    """Return the requests of three clients."""
    at, found = 0.0, []
    for _ in range(REQUESTS):
        ttft = rng.choice((0.125, 0.25, 0.5))
        one = {"client": rng.choice("abc"), "time": at, "ttft": ttft}
        one |= {"latency": ttft + rng.choice((0.5, 1.0, 2.25))}
        found.append({**one, "in": rng.randrange(1, 2000), "out": rng.randrange(2, 300)})
        at += rng.choice((0.0, 0.25, 0.5, 1.0))
    return found


def facts(path):
    """Return the numbers that ``score`` and ``trace`` read from a file, request by request."""
    scored, trace = read_scored([path]), read_trace(TraceParams(f"{path}")).trace.table()
    of = scored.requests
    columns = (of.arrival_s, of.first_token_s, of.finish_s, of.input_tokens, of.output_tokens)
    rows = zip((scored.clients[one] for one in of.client), *columns, strict=True)
    also = (trace.arrival_s, trace.end_s, trace.input_tokens, trace.output_tokens)
    others = zip((trace.clients[one] for one in trace.client), *also, strict=True)
    return [
        sorted((name, *(round(float(value), 4) for value in values)) for name, *values in table)
        for table in (rows, others)
    ]


class Writer:
    """A form of records: the names of columns, the units and the kind of file."""

    def __init__(self, rng):
        self.rng = rng
        self.base_s = rng.choice((0.0, 5.0, 1e6, float(DAY_S)))
        self.unit = rng.choice((None, *UNITS, *CALENDAR))
        self.as_text = rng.random() < 0.3
        self.lengths = {"ttft": rng.choice(list(UNITS)), "latency": rng.choice(list(UNITS))}
        self.moments = {"first_token": rng.random() < 0.3, "end": rng.random() < 0.3}
        unit = self.unit if self.unit in UNITS else None
        self.names = {field: self.name(field, unit) for field in ("time", "first_token", "end")}
        self.names |= {field: self.name(field, unit) for field, unit in self.lengths.items()}
        self.names |= {field: self.name(field) for field in ("client", "input_tokens")}
        self.names["output_tokens"] = self.name("output_tokens")

    def name(self, field, unit=None):
        """Return a common name of a field, with its unit unless the unit is stated elsewhere."""
        name = self.rng.choice(NAMES[SYNONYMS.get(field, field)])
        name = self.rng.choice(CASES)(PRETTY.get(name, name))
        return self.rng.choice(SHAPES).format(name, unit) if unit else name

    def number(self, value):
        value = int(value) if float(value).is_integer() and self.rng.random() < 0.7 else value
        return f"{value}" if self.as_text else value

    def moment(self, at_s):
        if self.unit in CALENDAR:
            moment = datetime.fromtimestamp(DAY_S + at_s, UTC)
            zone = CALENDAR[self.unit]
            if zone is None:
                return moment.replace(tzinfo=None).isoformat(sep=self.rng.choice(" T"))
            return moment.astimezone(zone).isoformat().replace("+00:00", "Z")
        return self.number(round((at_s + self.base_s) * UNITS.get(self.unit, 1), 6))

    def length(self, field, length_s):
        return self.number(round(length_s * UNITS[self.lengths[field]], 6))

    def row(self, one):
        names = self.names
        row = {names["client"]: one["client"], names["time"]: self.moment(one["time"])}
        row |= {names["input_tokens"]: self.number(one["in"])}
        row |= {names["output_tokens"]: self.number(one["out"])}
        for moment, field in (("first_token", "ttft"), ("end", "latency")):
            if self.moments[moment]:
                row[names[moment]] = self.moment(one["time"] + one[field])
            else:
                row[names[field]] = self.length(field, one[field])
        return row

    def file(self, records):
        """Return the file's ending, its bytes, and whether this form should be readable."""
        rows = [self.row(one) for one in records]
        for name, value in self.rng.sample(OTHERS, self.rng.choice((0, 1, 2, 3))):
            rows = [{**row, name: value} for row in rows]
        order = list(rows[0])
        self.rng.shuffle(order)
        rows = [{name: row[name] for name in order} for row in rows]
        ending, text = self.rng.choice((self.as_csv, self.as_json))(rows)
        code = self.rng.choice(("utf-8",) * 6 + ("utf-8-sig",) * 2 + ("utf-16", "utf-16-le"))
        return self.packed(ending, text.encode(code), not code.startswith("utf-16"))

    def as_csv(self, rows):
        out = io.StringIO()
        end, quotes = self.rng.choice("\n\r"), self.rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
        how = {"delimiter": self.rng.choice(",,\t;"), "quoting": quotes}
        writer = csv.DictWriter(out, list(rows[0]), lineterminator=end.replace("\r", "\r\n"), **how)
        out.write(self.rng.choice(("", "", "\n")))
        writer.writeheader()
        writer.writerows([{k: "" if v is None else v for k, v in row.items()} for row in rows])
        return self.rng.choice((".csv", ".tsv")), out.getvalue()

    def as_json(self, rows):
        if self.rng.random() < 0.3:
            return ".json", json.dumps(rows, indent=self.rng.choice((None, 2)))
        lines = "\n".join(json.dumps(row) for row in rows)
        return self.rng.choice((".jsonl", ".json", ".log")), lines + self.rng.choice(("", "\n\n"))

    def packed(self, ending, data, readable):
        kind = self.rng.choice(("",) * 6 + ("gz", "gz", "cut", "zip", "unnamed"))
        if kind == "zip":
            out = io.BytesIO()
            with zipfile.ZipFile(out, "w") as file:
                file.writestr("records", data)
            return ending, out.getvalue(), False
        if not kind:
            return ending, data, readable
        data = gzip.compress(data)
        if kind == "cut":
            return f"{ending}.gz", data[: len(data) // 2], False
        return (ending, data, False) if kind == "unnamed" else (f"{ending}.gz", data, readable)


def attempts(count, seed):
    """Write ``count`` files. Return the counts of right and refused files, and the failures."""
    rng, ends, wrong = random.Random(seed), Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            records = records_of(rng)
            plain = Path(folder) / f"plain-{number}.jsonl"
            as_plain = {"time": "start", "in": "input_tokens", "out": "output_tokens"}
            rows = [{as_plain.get(k, k): v for k, v in one.items()} for one in records]
            plain.write_text("\n".join(map(json.dumps, rows)))
            ending, data, readable = Writer(rng).file(records)
            other = Path(folder) / f"other-{number}{ending}"
            other.write_bytes(data)
            try:
                end = "right" if facts(other) == facts(plain) else "wrong"
            except FairbenchError as error:
                end = "refused" if len(f"{error}".splitlines()) == 1 else f"refused: {error}"
            ends[end] += 1
            if end != ("right" if readable else "refused"):
                wrong.append((end, ending, data[:600]))
            plain.unlink()
            other.unlink()
    return ends, wrong


def main(count, seed):
    ends, wrong = attempts(count, seed)
    for one in wrong:
        print(f"{one!r}\n", flush=True)
    print(f"seed {seed}, {count} files:", dict(sorted(ends.items())), f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
