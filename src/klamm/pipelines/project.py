"""A project: a folder with a klamm.toml, pipelines and schemas, and the places of its tables and state.

    [project]
    name = "shop"                         # a prefix of its groups and its dead-letter topic
    bootstrap = "localhost:9092"
    pipelines = "pipelines"               # the folder with the Python files
    schemas = "schemas"                   # inferred schemas, .avsc and .desc files
    tables = "tables"                     # a folder, or a URI: s3://…, gs://…, az://…, hdfs://…
    state = ".klamm"                      # attempts and status; a folder, or a URI as above
    checkpoints = ".klamm/checkpoints"    # on a cluster: a URI that all machines can reach
    dead_letters = "shop.dead-letters"

    [spark]
    master = "local[*]"
    packages = "installed"                # "send": executors get the packages of this environment
    spark.sql.shuffle.partitions = 2      # any spark.* key

    [kafka]
    security.protocol = "SSL"             # any client key, in Kafka's dotted names

    [run]
    retries = 3                           # how often a failed pipeline is started again
    on_failure = "stop"                   # "go on": the others run on when a pipeline is given up

    [storage]                             # of tables that are not on this machine: the keys of deltalake's
    aws_region = "eu-central-1"           # stores
    aws_secret_access_key = "${env:AWS_SECRET}"     # or ${file:/run/secrets/aws}

    [iceberg.lake]                        # the catalog of iceberg("lake.shop.orders"): pyiceberg's keys
    type = "sql"
    uri = "sqlite:///catalog.db"          # of a file: relative to the project's folder, as a warehouse is
    warehouse = "warehouse"

Values in [kafka], [storage] and [iceberg] may name environment variables and files, so that secrets stay out
of the file. Everything but `name` has a default. An unknown key is an error that names its line and the
nearest known key.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path

from klamm.config.client_config import KEYS_BY_KIND
from klamm.config.files import Setting, read_config_file
from klamm.config.rows import ConfigError
from klamm.pipelines.errors import Place, ProjectError
from klamm.pipelines.locations import joined, local_path
from klamm.pipelines.retrying import ON_FAILURE, RunPolicy

PROJECT_FILE = "klamm.toml"
DEFAULT_BOOTSTRAP = "localhost:9092"
DEFAULT_MASTER = "local[*]"
DEFAULT_STATE = ".klamm"

_PROJECT_KEYS = (
    "name",
    "bootstrap",
    "pipelines",
    "schemas",
    "tables",
    "state",
    "checkpoints",
    "dead_letters",
)
_PACKAGES = ("installed", "send")
_RUN_KEYS = ("retries", "on_failure")
# The name becomes part of the names of topics, groups and folders.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_SQLITE = "sqlite:///"
_LOOKED_UP = re.compile(r"\$\{(env|file):([^}]+)\}")


@dataclass(frozen=True)
class Project:
    """The settings of klamm.toml, with absolute paths. `tables` and `checkpoints` may be URIs.

    If the file says that the state is at a URI, that is `shared_state`, and `state` is the default folder,
    for what belongs to one machine: locks and logs.
    """

    name: str
    root: Path
    bootstrap: str
    tables: str
    state: Path
    checkpoints: str
    pipelines: Path
    schemas: Path
    dead_letters: str
    master: str = DEFAULT_MASTER
    shared_state: str = ""
    packages: str = ""
    """ "installed" if the machines of a cluster have our packages, "send" if they get them from here; "" if
    the file does not say."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """The `spark.*` keys."""
    kafka: Mapping[str, str] = field(default_factory=dict)
    """Client keys in Kafka's dotted names, without `bootstrap.servers`."""
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The keys of the store that the tables are in. They may be secrets."""
    run: RunPolicy = field(default_factory=RunPolicy)
    iceberg: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """The keys of Iceberg's catalogs, by catalog. They may be secrets."""

    @classmethod
    def load(
        cls,
        path: str | PathLike[str] = ".",
        *,
        bootstrap: str | None = None,
        master: str | None = None,
        without: Collection[str] = (),
    ) -> Project:
        """Load a project by its folder or its klamm.toml. `bootstrap` and `master` override the file. The
        sections `without` are not read: tests need no secrets."""
        file = Path(fspath(path)).resolve()
        file = file / PROJECT_FILE if file.is_dir() else file
        if not file.is_file():
            raise ProjectError(
                f"there is no project at {file.parent}: it has no {file.name}",
                advice="Create one with `klamm pipeline init`, or name its folder with --project",
            )
        try:
            settings = read_config_file(file)
        except ConfigError as error:
            raise ProjectError(str(error), advice="Correct the file") from None
        sections = _Sections(file)
        for setting in settings:
            if setting.name.partition(".")[0] not in without:
                sections.take(setting)
        return sections.project(bootstrap, master)

    def client_settings(self, kind: str) -> dict[str, str]:
        """The settings of [kafka] that a client of this kind ("consumer", "producer", "admin") knows."""
        return {name: value for name, value in self.kafka.items() if name in KEYS_BY_KIND[kind]}

    def group_of(self, pipeline: str) -> str:
        """The consumer group to which a pipeline commits its offsets."""
        return f"{self.name}.{pipeline}"


def nearest_project(folder: Path) -> Path | None:
    """The folder itself or the nearest one above it that has a klamm.toml; None if there is none."""
    return next((each for each in (folder, *folder.parents) if (each / PROJECT_FILE).is_file()), None)


class _Sections:
    """Collects the settings of the file by section, and raises on unknown ones."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._project: dict[str, Setting] = {}
        self._spark: dict[str, str] = {}
        self._kafka: dict[str, str] = {}
        self._storage: dict[str, str] = {}
        self._run: dict[str, Setting] = {}
        self._iceberg: dict[str, dict[str, str]] = {}

    def take(self, setting: Setting) -> None:
        section, _, name = setting.name.partition(".")
        if section == "project":
            self._known(setting, name, _PROJECT_KEYS, "[project]")
            self._project[name] = setting
        elif section == "spark" and name == "packages" and setting.text not in _PACKAGES:
            known = " or ".join(f'"{each}"' for each in _PACKAGES)
            raise self._error(setting, f"packages is {setting.text!r}", f"Use {known}")
        elif section == "spark" and (name in ("master", "packages") or name.startswith("spark.")):
            self._spark[name] = setting.text
        elif section == "spark":
            raise self._error(
                setting, f"{name} is not a key of [spark]", "[spark] takes master, packages and spark.* keys"
            )
        elif section == "kafka":
            self._known(setting, name, {key for keys in KEYS_BY_KIND.values() for key in keys}, "[kafka]")
            self._kafka[name] = self._looked_up(setting)
        elif section == "run":
            self._known(setting, name, _RUN_KEYS, "[run]")
            self._run[name] = setting
        elif section == "storage":
            self._storage[name] = self._looked_up(setting)
        elif section == "iceberg":
            catalog, _, key = name.partition(".")
            if not key:
                raise self._error(
                    setting,
                    f"{name} is not in the section of a catalog",
                    "Write it under [iceberg.<catalog>]",
                )
            self._iceberg.setdefault(catalog, {})[key] = self._looked_up(setting)
        else:
            raise self._error(
                setting,
                f"[{section}] is not a known section",
                "Use [project], [spark], [kafka], [run], [storage] and [iceberg.<catalog>]",
            )

    def _looked_up(self, setting: Setting) -> str:
        """The text with the values of the environment variables and files that it names."""

        def value(found: re.Match[str]) -> str:
            kind, name = found.groups()
            if kind == "env":
                if name not in os.environ:
                    advice = f"Set {name}, or correct the name"
                    raise self._error(setting, f"the environment has no variable {name}", advice)
                return os.environ[name]
            try:
                return (self._file.parent / name).read_text().strip()
            except OSError as error:
                message = f"the file {name} cannot be read: {error.strerror}"
                raise self._error(setting, message, "Correct its path or its rights") from None

        return _LOOKED_UP.sub(value, setting.text)

    def project(self, bootstrap: str | None, master: str | None) -> Project:
        root = self._file.parent
        name = self._name()
        of_kafka = self._kafka.pop("bootstrap.servers", None)
        place = self._text("state", DEFAULT_STATE)
        folder = local_path(place) if _URI.match(place) else _folder(root, place)
        is_shared = folder is None
        state = folder or _folder(root, DEFAULT_STATE)
        checkpoints = joined(place if is_shared else str(state), "checkpoints")
        return Project(
            name=name,
            root=root,
            bootstrap=bootstrap or self._text("bootstrap", of_kafka or DEFAULT_BOOTSTRAP),
            tables=_location(root, self._text("tables", "tables")),
            state=state,
            shared_state=place if is_shared else "",
            checkpoints=_location(root, self._text("checkpoints", checkpoints)),
            pipelines=_folder(root, self._text("pipelines", "pipelines")),
            schemas=_folder(root, self._text("schemas", "schemas")),
            dead_letters=self._text("dead_letters", f"{name}.dead-letters"),
            master=master or self._spark.pop("master", DEFAULT_MASTER),
            packages=self._spark.pop("packages", ""),
            spark={key: value for key, value in self._spark.items() if key != "master"},
            kafka=self._kafka,
            storage=self._storage,
            run=self._run_policy(),
            iceberg={name: _catalog(root, settings) for name, settings in self._iceberg.items()},
        )

    def _run_policy(self) -> RunPolicy:
        policy = RunPolicy()
        if (setting := self._run.get("retries")) is not None:
            if not setting.text.isdecimal():
                raise self._error(
                    setting, f"retries is {setting.text!r}", "Give a whole number; 0 means no retries"
                )
            policy = replace(policy, retries=int(setting.text))
        if (setting := self._run.get("on_failure")) is not None:
            found = next((each for each in ON_FAILURE if each == setting.text), None)
            if found is None:
                known = " or ".join(f'"{each}"' for each in ON_FAILURE)
                raise self._error(setting, f"on_failure is {setting.text!r}", f"Use {known}")
            policy = replace(policy, on_failure=found)
        return policy

    def _name(self) -> str:
        setting = self._project.get("name")
        if setting is None:
            raise ProjectError(
                "the project has no name",
                advice='Write name = "…" under [project]',
                place=Place(self._file, 1),
            )
        if not is_project_name(setting.text):
            raise self._error(
                setting,
                f"{setting.text!r} is not a valid project name",
                "Use letters, digits, '.', '_' and '-'",
            )
        return setting.text

    def _text(self, name: str, default: str) -> str:
        setting = self._project.get(name)
        if setting is not None and not setting.text:
            raise self._error(setting, f"{name} is empty", "Give it a value, or leave it out")
        return default if setting is None else setting.text

    def _known(self, setting: Setting, name: str, names: Iterable[str], section: str) -> None:
        if name not in names:
            nearest = difflib.get_close_matches(name, list(names), n=1)
            advice = f"Did you mean {nearest[0]}?" if nearest else ""
            raise self._error(setting, f"{name} is not a key of {section}", advice)

    def _error(self, setting: Setting, message: str, advice: str) -> ProjectError:
        return ProjectError(message, advice=advice, place=Place(self._file, setting.line))


def is_project_name(text: str) -> bool:
    """True if `text` is a valid project name."""
    return _NAME.fullmatch(text) is not None


def _catalog(root: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of a catalog, with absolute paths. To other catalogs than databases a warehouse is a
    name."""
    found = dict(settings)
    if found.get("type") == "sql":
        if "warehouse" in found:
            found["warehouse"] = _location(root, found["warehouse"])
        file = found.get("uri", "").removeprefix(_SQLITE)
        if found.get("uri", "").startswith(_SQLITE) and file not in ("", ":memory:"):
            found["uri"] = f"{_SQLITE}{_folder(root, file)}"
    return found


def _folder(root: Path, text: str) -> Path:
    return (root / text).resolve()


def _location(root: Path, text: str) -> str:
    """A URI as it is; anything else is a path from the project's folder."""
    return text if _URI.match(text) else str(_folder(root, text))
