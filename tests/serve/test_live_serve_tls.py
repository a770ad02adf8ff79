"""Test ``fairbench serve`` over HTTPS: real requests, and unusable pairs of files."""

import asyncio
import shutil
import signal
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientConnectorError, ClientError, ClientSession
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import UsageError
from fairbench_serve.tls import server_tls
from tests.serve.live_router import GENERATE, Worker, events, payloads, streamed

OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="this machine lacks openssl")


def openssl(*arguments):
    subprocess.run([OPENSSL, *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return a self-signed certificate of 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    certify(cert, key)
    return cert, key


@asynccontextmanager
async def serving(pair, worker):
    """Run ``fairbench serve``. Yield its URL, its log after it has stopped, and its process."""
    flags = ("--port", "0", "--worker-url", worker.url, "--tls-cert", pair[0], "--tls-key", pair[1])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fairbench", "serve", *map(str, flags)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    log = []
    try:
        yield (await process.stdout.readline()).decode().strip(), log, process
    finally:
        process.terminate()
        log.append((await process.communicate())[1].decode())


@needs_openssl
def test_only_https_requests_and_streams_are_served(pair):
    trust = ssl.create_default_context(cafile=pair[0])

    async def run():
        worker = Worker()
        await worker.start()
        async with ClientSession() as session, serving(pair, worker) as (url, log, _):
            assert url.startswith("https://127.0.0.1:")
            async with session.post(url + GENERATE, json=streamed(GENERATE), ssl=trust) as answer:
                told = answer.status, payloads(await answer.read())
            with pytest.raises(ClientConnectorError):  # no client trusts a self-signed certificate
                await session.get(f"{url}/health")
            with pytest.raises(ClientError):
                await session.get(f"{url.replace('https', 'http')}/health")
            async with session.get(f"{url}/health", ssl=trust) as answer:
                assert answer.status == 200
        await worker.stop()
        return told, log

    told, (log,) = asyncio.run(run())
    assert told == (200, list(events(GENERATE, {})))
    assert "Traceback" not in log


def certify(cert, key, kind=("ec", "-pkeyopt", "ec_paramgen_curve:P-256")):
    name = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
    openssl("req", "-x509", "-newkey", *kind, "-nodes", *name, "-keyout", key, "-out", cert)


@needs_openssl
def test_renewed_files_are_used_after_sighup_and_unusable_ones_are_not(pair, tmp_path):
    """Certificates may have another kind of key. An open connection continues."""
    cert, key = (shutil.copy(file, tmp_path) for file in pair)
    trust = ssl.create_default_context(cafile=cert)

    async def run():
        worker = Worker()
        await worker.start()
        async with ClientSession() as session, serving((cert, key), worker) as (url, log, process):
            port = int(url.rpartition(":")[2])

            def shown():
                return ssl.get_server_certificate(("127.0.0.1", port))

            async def renewed(expected):
                process.send_signal(signal.SIGHUP)
                async with asyncio.timeout(60):
                    while (found := await asyncio.to_thread(shown)) != expected:
                        await asyncio.sleep(0.01)
                return found

            async with session.get(f"{url}/health", ssl=trust) as answer:
                assert answer.status == 200
            seen = [await renewed(Path(cert).read_text())]
            for kind in (("rsa:2048",), ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")):
                certify(cert, key, kind)
                seen.append(await renewed(Path(cert).read_text()))
            for text in ("torn", Path(pair[0]).read_text()):  # the certificate of another key
                Path(cert).write_text(text)
                seen.append(await renewed(seen[-1]))
            Path(key).unlink()
            seen.append(await renewed(seen[-1]))
            async with session.get(f"{url}/health", ssl=trust) as answer:  # kept open
                assert answer.status == 200
        await worker.stop()
        return seen, log

    seen, (log,) = asyncio.run(run())
    assert len(set(seen)) == 3
    assert log.count("the TLS certificate and its key were read again") == 3
    assert log.count("the previous certificate stays in force") == 3
    assert "Traceback" not in log


@needs_openssl
def test_an_unusable_pair_is_named(pair, tmp_path):
    cert, key = pair
    other, locked = tmp_path / "other.pem", tmp_path / "locked.pem"
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", other)
    openssl("pkey", "-in", key, "-aes128", "-passout", "pass:secret", "-out", locked)
    for wrong, complaint in (
        (other, "--tls-cert .*cert.pem, --tls-key .*other.pem: the private key does not belong"),
        (locked, "--tls-key .*locked.pem: the private key is encrypted"),
        (cert, "--tls-key .*cert.pem: holds no private key in PEM format"),
    ):
        with pytest.raises(UsageError, match=complaint):
            server_tls(cert, wrong)
    with pytest.raises(UsageError, match=r"--tls-cert .*key.pem: holds no certificate"):
        server_tls(key, key)
    torn = tmp_path / "torn.pem"
    torn.write_bytes(cert.read_bytes()[:100])
    with pytest.raises(UsageError, match=r"torn.pem, --tls-key .*: cannot be used"):
        server_tls(torn, key)


WORKER = ("--worker-url", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--tls-cert", "cert.pem"), "--tls-cert needs --tls-key, too"),
        (("--tls-key", "key.pem"), "--tls-key needs --tls-cert, too"),
        (
            ("--tls-cert", "none.pem", "--tls-key", "none.pem"),
            "--tls-cert none.pem: cannot be read",
        ),
        (("--tls-cert", "/dev/zero", "--tls-key", "none.pem"), "/dev/zero: holds no certificate"),
        (("--tls-cert", "/", "--tls-key", "none.pem"), "--tls-cert /: cannot be read"),
    ],
)
def test_missing_flags_or_packages_are_one_line(arguments, complaint):
    result = CliRunner().invoke(app, ["serve", "--port", "0", *WORKER, *arguments])
    assert result.exit_code == 2
    assert complaint in result.stderr.replace("\n", " ")
