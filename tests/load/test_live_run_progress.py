"""Test the progress line of a live run."""

from fairbench.execute.tasks import DriveProgress, ServersProgress
from fairbench.report.progress import progress_line


def driven(service, end_s=100.0):
    return DriveProgress(20.0, end_s, 1234, 1300, service)


def test_the_line_counts_servers_that_are_ready():
    assert progress_line(ServersProgress(1, 4)) == "servers ready 1/4"


def test_the_line_shows_programs_and_the_throughput_of_the_busiest_clients():
    line = progress_line(driven({"a": 2000, "b": 40_000, "c": 0, "d": 0, "e": 100}))
    assert line == "20 of 100 s  programs 1,234/1,300  service 2,000/100/5/0 tok/s"
    assert progress_line(driven({}, None)).startswith("20 s  programs 1,234/1,300")


def test_the_text_stays_one_line():
    line = progress_line(driven({str(n): 10**12 for n in range(4)}))
    assert line == "20 of 100 s  programs 1,234/1,300"
