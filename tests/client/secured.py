"""An Apache Kafka with TLS and logins, and how a client is told to use them.

    with SecuredKafka(tmp_path) as kafka:
        for way in WAYS:
            klamm.Producer(**kafka.options(way))

Certificates are made by the openssl command, for the name `localhost` only: 127.0.0.1 is a host that the
certificate does not name.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from klamm.security.oauth import OAuthToken
from tests.peers.apache_kafka import ApacheKafka
from tests.peers.kafka_jars import PeerMissing

USER, PASSWORD = "alice", "alice-secret-1"
SCRAM_USER, SCRAM_PASSWORD = "bob", "bob-secret-²"  # Kafka takes it as typed; SASLprep would make it a 2

STRANGER, STRANGER_PASSWORD = "carol", "carol-secret-3"
"""May log in, and do nothing: no topic, no group. The others may do everything."""

LISTENERS = {
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "LOGINTLS": "SASL_SSL",
    "BRIEF": "SASL_PLAINTEXT",
    "ONLYPLAIN": "SASL_PLAINTEXT",
    "OAUTH": "SASL_PLAINTEXT",
}
"""BRIEF's and OAUTH's logins last BRIEF_LOGIN_MS; MUTUAL wants the client's certificate; ONLYPLAIN takes no
SCRAM; OAUTH takes tokens that nobody signed."""

BRIEF_LOGIN_MS = 4000
"""Kafka refuses to renew a login that is younger than a second; see `early_renewals`."""

WAYS = {
    "TLS": ("TLS", None),
    "TLS both ways": ("MUTUAL", None),
    "PLAIN": ("LOGIN", "PLAIN"),
    "SCRAM-SHA-256": ("LOGIN", "SCRAM-SHA-256"),
    "SCRAM-SHA-512": ("LOGIN", "SCRAM-SHA-512"),
    "PLAIN in TLS": ("LOGINTLS", "PLAIN"),
    "SCRAM-SHA-512 in TLS": ("LOGINTLS", "SCRAM-SHA-512"),
    "brief logins": ("BRIEF", "SCRAM-SHA-256"),
    "OAUTHBEARER": ("OAUTH", "OAUTHBEARER"),
}
"""The ways to connect: a listener and a mechanism each."""


class SecuredKafka:
    """One node with all of LISTENERS. `directory` takes the certificates."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory)
        self.kafka = ApacheKafka(
            listeners=LISTENERS,
            scram_users={SCRAM_USER: SCRAM_PASSWORD},
            advertised_host="localhost",
            properties=dict(self._properties()),
        )

    def __enter__(self) -> SecuredKafka:
        self.kafka.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.kafka.stop()

    def address(self, listener: str, host: str = "localhost") -> str:
        return f"{host}:{self.kafka.port_of(listener)}"

    def options(self, way: str) -> dict[str, Any]:
        """Keyword arguments for a client that connects this way."""
        listener, mechanism = WAYS[way]
        options: dict[str, Any] = {
            "bootstrap": self.address(listener),
            "security_protocol": LISTENERS[listener],
        }
        if "SSL" in LISTENERS[listener]:
            options["ssl_ca_location"] = str(self.certificates.authority)
        if listener == "MUTUAL":
            options["ssl_certificate_location"] = str(self.certificates.client)
            options["ssl_key_location"] = str(self.certificates.client_key)
        if mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = unsigned_token
        elif mechanism is not None:
            is_plain = mechanism == "PLAIN"
            options["sasl_mechanism"] = mechanism
            options["sasl_username"] = USER if is_plain else SCRAM_USER
            options["sasl_password"] = PASSWORD if is_plain else SCRAM_PASSWORD
        return options

    def options_of_stranger(self) -> dict[str, Any]:
        return {
            **self.options("PLAIN"),
            "sasl_username": STRANGER,
            "sasl_password": STRANGER_PASSWORD,
        }

    def _properties(self) -> Iterator[tuple[str, str]]:
        yield "authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        yield "super.users", f"User:ANONYMOUS;User:{USER};User:{SCRAM_USER};User:CN=client"
        yield "ssl.keystore.type", "PEM"
        yield "ssl.keystore.location", str(self.certificates.broker)
        yield "ssl.truststore.type", "PEM"
        yield "ssl.truststore.location", str(self.certificates.authority)
        yield "listener.name.mutual.ssl.client.auth", "required"
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
        users = f'user_{USER}="{PASSWORD}" user_{STRANGER}="{STRANGER_PASSWORD}"'
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
        for name in (name.lower() for name, protocol in LISTENERS.items() if "SASL" in protocol):
            prefix = f"listener.name.{name}"
            if name == "oauth":
                oauth = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
                claim = 'unsecuredLoginStringClaim_sub="broker"'
                yield f"{prefix}.sasl.enabled.mechanisms", "OAUTHBEARER"
                yield f"{prefix}.oauthbearer.sasl.jaas.config", f"{oauth} required {claim};"
                yield f"{prefix}.oauthbearer.connections.max.reauth.ms", str(BRIEF_LOGIN_MS)
                continue
            yield f"{prefix}.plain.sasl.jaas.config", f"{plain} required {users};"
            if name == "onlyplain":
                yield f"{prefix}.sasl.enabled.mechanisms", "PLAIN"
                continue
            yield f"{prefix}.sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                yield f"{prefix}.{mechanism}.sasl.jaas.config", f"{scram} required;"
        for mechanism in ("plain", "scram-sha-256", "scram-sha-512"):
            yield f"listener.name.brief.{mechanism}.connections.max.reauth.ms", str(BRIEF_LOGIN_MS)


def unsigned_token(lasts_seconds: float = 600.0) -> OAuthToken:
    """A token for USER that nobody signed, as Kafka takes it by default. It was issued a minute ago: Kafka
    rounds to milliseconds, and refuses a token that is then issued in the future."""
    now = time.time()
    claims = {"sub": USER, "iat": now - 60.0, "exp": now + lasts_seconds}
    parts = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in ({"alg": "none"}, claims)
    )
    return OAuthToken(".".join(parts) + ".", claims["exp"])


class Certificates:
    """An authority, a broker's certificate for localhost, a client's, and an authority nobody asked for."""

    def __init__(self, directory: Path) -> None:
        self._openssl = shutil.which("openssl") or ""
        if not self._openssl:
            raise PeerMissing("openssl is missing: install openssl (Debian)")
        self.directory = directory
        self.authority = self._make_authority("authority")
        self.stranger = self._make_authority("stranger")
        broker, broker_key = self._make("broker", "subjectAltName=DNS:localhost")
        self.broker = directory / "broker-with-key.pem"
        self.broker.write_text(broker_key.read_text() + broker.read_text())
        self.broker_key = broker_key
        self.client, self.client_key = self._make("client", "extendedKeyUsage=clientAuth")

    def _make_authority(self, name: str) -> Path:
        certificate = self.directory / f"{name}.pem"
        self._run(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", f"{name}-key.pem", "-out", certificate.name, "-days", "2", "-subj", f"/CN={name}"),
        )
        return certificate

    def _make(self, name: str, extension: str) -> tuple[Path, Path]:
        """A certificate from the authority, and its key."""
        certificate, key = self.directory / f"{name}.pem", self.directory / f"{name}-key.pem"
        self._run(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key.name),
            *("-out", f"{name}.csr", "-subj", f"/CN={name}"),
        )
        (self.directory / f"{name}.ext").write_text(extension + "\n")
        self._run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey", "authority-key.pem"),
            *("-CAcreateserial", "-out", certificate.name, "-days", "2", "-extfile", f"{name}.ext"),
        )
        return certificate, key

    def encrypted_client_key(self, password: str) -> Path:
        key = self.directory / "client-key-encrypted.pem"
        self._run(
            "pkcs8", "-topk8", "-in", self.client_key.name, "-out", key.name, "-passout", f"pass:{password}"
        )
        return key

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [self._openssl, *arguments], cwd=self.directory, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
