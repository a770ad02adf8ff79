"""A stand-in server with a child process, which the launcher starts in tests.

    python live_fake_server.py PORT [--after S] [--exit CODE] [--stubborn] [--pids FILE]

It answers 503 for S seconds, and then 200 to everything. ``--stubborn`` ignores SIGTERM.
"""

import argparse
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("--after", type=float, default=0.0)
parser.add_argument("--exit", type=int)
parser.add_argument("--stubborn", action="store_true")
parser.add_argument("--pids", type=Path)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if time.monotonic() >= ready_at else 503)
        self.end_headers()

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    options = parser.parse_args()
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    if options.pids:
        import os

        with options.pids.open("a") as file:
            file.write(f"{os.getpid()} {child.pid}\n")
    print("starting", flush=True)
    if options.exit is not None:
        print("something is wrong\nwith this server", flush=True)
        sys.exit(options.exit)
    ready_at = time.monotonic() + options.after
    HTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
