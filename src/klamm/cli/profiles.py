"""Profiles: how to reach a cluster, by a name. They are in a TOML file that only its owner may read.

    current = "staging"

    [profiles.staging]
    bootstrap = "broker-1:9093,broker-2:9093"
    "security.protocol" = "SASL_SSL"
    "sasl.password" = "${env:STAGING_PASSWORD}"

Every key but `bootstrap` is a setting of Kafka's clients. `${env:NAME}` and `${file:PATH}` stand for a secret
that is not in the file. They are looked up when the profile is used.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from klamm.cli.errors import CommandError

FILE_VARIABLE = "KLAMM_PROFILES"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")


@dataclass(frozen=True)
class Profile:
    """How to reach one cluster. Nothing is set in the profile that stands for none."""

    bootstrap: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def resolved(self, name: str) -> Profile:
        """The profile with its secrets. Raises CommandError for one that is not there."""
        return Profile(
            self.bootstrap, {key: _resolved(value, key, name) for key, value in self.settings.items()}
        )


@dataclass(frozen=True)
class Profiles:
    """The file of profiles."""

    path: Path
    current: str = ""
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None = None) -> Profiles:
        """The profiles of the user; none if there is no file. Raises CommandError if it cannot be read."""
        file = path or default_path(os.environ)
        try:
            found = tomllib.loads(file.read_text())
        except FileNotFoundError:
            return cls(file)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise CommandError(f"the profiles in {file} cannot be read: {error}") from None
        profiles = {name: _profile(name, values, file) for name, values in found.get("profiles", {}).items()}
        return cls(file, str(found.get("current", "")), profiles)

    def chosen(self, name: str | None) -> Profile:
        """The profile of that name, or the one in use, or one without settings."""
        wanted = name or self.current
        if not wanted:
            return Profile()
        return self.named(wanted).resolved(wanted)

    def named(self, name: str) -> Profile:
        if name not in self.profiles:
            known = ", ".join(self.profiles) or "none"
            raise CommandError(
                f"there is no profile {name}: there are {known}",
                advice=f"Create one: klamm profile create {name} --bootstrap HOST:PORT",
            )
        return self.profiles[name]

    def with_profile(self, name: str, profile: Profile, *, is_current: bool) -> Profiles:
        return replace(
            self, current=name if is_current else self.current, profiles={**self.profiles, name: profile}
        )

    def without(self, name: str) -> Profiles:
        self.named(name)
        left = {each: profile for each, profile in self.profiles.items() if each != name}
        return replace(self, current="" if self.current == name else self.current, profiles=left)

    def write(self) -> None:
        """Replace the file in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self.as_toml())
        beside.replace(self.path)

    def as_toml(self) -> str:
        lines = [f"current = {_text(self.current)}"] if self.current else []
        for name, profile in self.profiles.items():
            lines += ["", f"[profiles.{_key(name)}]", f"bootstrap = {_text(profile.bootstrap)}"]
            lines += [f"{_key(key)} = {_text(value)}" for key, value in profile.settings.items()]
        return "\n".join(lines).lstrip("\n") + "\n"


def default_path(environment: Mapping[str, str]) -> Path:
    if given := environment.get(FILE_VARIABLE):
        return Path(given).expanduser()
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "klamm/profiles.toml"


def _profile(name: str, values: object, file: Path) -> Profile:
    if not isinstance(values, dict):
        raise CommandError(f"profile {name} in {file} is not a table of settings")
    settings: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, bool):
            settings[key] = str(value).lower()
        elif isinstance(value, str | int | float):
            settings[key] = str(value)
        else:
            raise CommandError(f"{key} of profile {name} in {file} is not a text, a number, true or false")
    return Profile(settings.pop("bootstrap", ""), settings)


def _resolved(value: str, key: str, profile: str) -> str:
    def look_up(match: re.Match[str]) -> str:
        kind, name = match.groups()
        what = f"{key} of profile {profile} needs"
        if kind == "env":
            if name not in os.environ:
                raise CommandError(f"{what} the environment variable {name}, which is not set")
            return os.environ[name]
        try:
            return Path(name).expanduser().read_text().strip()
        except OSError as error:
            raise CommandError(f"{what} the file {name}: {error.strerror}") from None

    return _REFERENCE.sub(look_up, value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _text(value: str) -> str:
    """A basic string of TOML, whose escapes are those of JSON."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
