"""A real S3 server for tests: versitygw, built by Go into the cache of the clone when it is first asked for.

Its buckets are folders of a temporary folder. It answers conditional puts, by which Delta commits.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.peers.kafka_jars import CACHE, PeerMissing
from tests.waiting import wait_until

VERSION = "v1.8.0"
MODULE = "github.com/versity/versitygw/cmd/versitygw"
BINARY = CACHE / f"versitygw-{VERSION}" / "versitygw"
BUILD_S = 900.0
KEY, SECRET, REGION = "klamm", "klamm-secret", "us-east-1"


def find_server() -> Path:
    """The server's program; builds it if the cache does not have it."""
    if BINARY.exists():
        return BINARY
    go = shutil.which("go")
    if go is None:
        raise PeerMissing(
            "Go is missing, which builds the S3 server of the tests: install golang-go (Debian)"
        )
    BINARY.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"GOBIN": str(BINARY.parent), "CGO_ENABLED": "0"}
    built = subprocess.run(
        [go, "install", f"{MODULE}@{VERSION}"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=BUILD_S,
    )
    if built.returncode:
        raise PeerMissing(f"the S3 server {MODULE}@{VERSION} cannot be built: {built.stderr[-500:]}")
    return BINARY


class S3Server:
    """A server with one bucket, `bucket`. `options` are those of deltalake's store."""

    def __init__(self, folder: Path) -> None:
        self._program = find_server()
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.options = {
            "aws_endpoint_url": f"http://127.0.0.1:{self._port}",
            "aws_allow_http": "true",
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "aws_region": REGION,
            "aws_conditional_put": "etag",
        }

    def __enter__(self) -> Self:
        (self._folder / "data/bucket").mkdir(parents=True)
        environment = os.environ | {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        command = [self._program, "--port", f"127.0.0.1:{self._port}", "--region", REGION, "--quiet", "posix"]
        with (self._folder / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*map(str, command), str(self._folder / "data")], stdout=log, stderr=log, env=environment
            )
        wait_until(self._answers, "the S3 server answers")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, (
            self._folder / "server.log"
        ).read_text()
        try:
            socket.create_connection(("127.0.0.1", self._port), 1).close()
        except OSError:
            return False
        return True
