"""A manifest for Kubernetes: a project in a ConfigMap, and a pod that runs it.

The image has Spark and `klamm[spark]`; the project is not in it, so a change of the project needs no new
image. With a local master the pod runs everything. With k8s://… it is the driver, and starts pods for
executors, for which the manifest has a service account.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from klamm.pipelines.deploying.project_files import looked_up, project_files
from klamm.pipelines.errors import ProjectError
from klamm.pipelines.locations import local_path
from klamm.pipelines.project import Project

PROJECT_HOME = PurePosixPath("/project")
CONFIG_HOME = PurePosixPath("/config")

MOST_BYTES = 1_000_000
"""What a ConfigMap can hold: Kubernetes takes a mebibyte, with names and all."""

STOP_S = 60
"""How long a pod may take to stop its pipelines."""

_MAIN = "klamm_main.py"
_RIGHTS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_OF_THE_POD = {"NAMESPACE": "metadata.namespace", "POD": "metadata.name", "POD_IP": "status.podIP"}


def manifest(
    project: Project, image: str, main: Path, names: Sequence[str] = (), *, once: bool = False
) -> list[dict[str, Any]]:
    """The objects of the manifest. Raises ProjectError if the project cannot run so."""
    _check(project)
    name = dns_name(project.name)
    labels = {"app.kubernetes.io/name": name}
    about = {"name": name, "labels": labels}
    files = project_files(project) | {_MAIN: main}
    keys = _keys(files)
    pod = _pod(project, image, name, keys, [*names, "--once"] if once else list(names), once)
    template = {"metadata": {"labels": labels}, "spec": pod}
    objects: list[dict[str, Any]] = [_config_map(about, files, keys)]
    if project.master.startswith("k8s://"):
        objects += _service_account(about, name)
    if once:
        spec: dict[str, Any] = {"backoffLimit": 3, "template": template}
        objects.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec})
    else:
        # One pod at a time: the old one is gone before the new one starts.
        spec = {"replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels}}
        spec["template"] = template
        objects.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": about, "spec": spec})
    return objects


def _check(project: Project) -> None:
    if not project.master.startswith(("local", "k8s://")):
        raise ProjectError(
            f"a pod cannot start Spark on {project.master} with this manifest",
            advice="Give --master 'local[*]', or --master k8s://https://kubernetes.default.svc",
        )
    for key, location in (("tables", project.tables), ("checkpoints", project.checkpoints)):
        if local_path(location) is not None and not location.startswith("file:"):
            raise ProjectError(
                f"{key} = {location} is a folder, and the folders of a pod are lost with the pod",
                advice=f"Set {key} to a URI: s3://…, hdfs://…, or file:///… for a volume that you add",
            )


def _keys(files: Mapping[str, Path]) -> dict[str, str]:
    """By file, its key in the ConfigMap, where keys have no slash."""
    keys: dict[str, str] = {}
    for file in files:
        key = made = re.sub(r"[^A-Za-z0-9._-]", "_", file)
        number = 2
        while made in keys.values():
            made, number = f"{key}-{number}", number + 1
        keys[file] = made
    return keys


def _config_map(
    about: Mapping[str, Any], files: Mapping[str, Path], keys: Mapping[str, str]
) -> dict[str, Any]:
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for file, path in files.items():
        data = path.read_bytes()
        try:
            texts[keys[file]] = data.decode()
        except UnicodeDecodeError:
            others[keys[file]] = base64.b64encode(data).decode()
    size = sum(len(text.encode()) for text in (*texts.values(), *others.values()))
    if size > MOST_BYTES:
        raise ProjectError(
            f"the project's files have {size:,} bytes, and a ConfigMap of Kubernetes holds {MOST_BYTES:,}",
            advice="Move large files out of its folders, or build an image that has the project",
        )
    made: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": texts}
    return made | {"binaryData": others} if others else made


def _service_account(about: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """May start and watch the pods of executors, and what Spark makes beside them."""
    group = "rbac.authorization.k8s.io"
    resources = ["pods", "services", "configmaps", "persistentvolumeclaims"]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about},
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": about,
            "rules": [{"apiGroups": [""], "resources": resources, "verbs": list(_RIGHTS)}],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": about,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name}],
        },
    ]


def _pod(
    project: Project, image: str, name: str, keys: Mapping[str, str], arguments: list[str], once: bool
) -> dict[str, Any]:
    has_executors = project.master.startswith("k8s://")
    secret_files = looked_up(project, "file")
    home = {"name": "project", "mountPath": str(PROJECT_HOME)}
    config = {"name": "config", "mountPath": str(CONFIG_HOME), "readOnly": True}
    items = [{"key": key, "path": file} for file, key in keys.items()]
    run = ["pipeline", "run", *arguments, "--project", str(PROJECT_HOME), "--master", project.master]
    container: dict[str, Any] = {
        "name": "run",
        "image": image,
        "workingDir": str(PROJECT_HOME),
        "command": [*_spark_submit(project, image), *run] if has_executors else ["klamm", *run],
        "env": _variables(project, name, has_executors),
        "volumeMounts": [home],
    }
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": name, "items": items}},
        {"name": "project", "emptyDir": {}},
    ]
    for file in secret_files:
        path = PROJECT_HOME / file
        mount = {"name": "secrets", "mountPath": str(path), "subPath": path.name, "readOnly": True}
        container["volumeMounts"].append(mount)
    if secret_files:
        volumes.append({"name": "secrets", "secret": {"secretName": name}})
    copying = {
        "name": "copy",
        "image": image,
        # A ConfigMap cannot be written to, and the project keeps its state and logs in its folder.
        "command": ["sh", "-c", f"cp -rL {CONFIG_HOME}/* {PROJECT_HOME}"],
        "volumeMounts": [config, home],
    }
    pod: dict[str, Any] = {"initContainers": [copying], "containers": [container], "volumes": volumes}
    if has_executors:
        pod["serviceAccountName"] = name
    else:
        pod["automountServiceAccountToken"] = False
    if once:
        pod["restartPolicy"] = "OnFailure"
    return pod | {"terminationGracePeriodSeconds": STOP_S}


def _variables(project: Project, name: str, has_executors: bool) -> list[dict[str, Any]]:
    """The environment: what klamm.toml looks up comes from a Secret of the project's name."""
    found: list[dict[str, Any]] = [
        {"name": each, "valueFrom": {"secretKeyRef": {"name": name, "key": each}}}
        for each in looked_up(project, "env")
    ]
    if has_executors:
        for each, path in _OF_THE_POD.items():
            found.append({"name": each, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    return found


def _spark_submit(project: Project, image: str) -> list[str]:
    settings = {
        **project.spark,
        "spark.kubernetes.namespace": "$(NAMESPACE)",
        # Executors end with the pod of their driver, which they reach by its address.
        "spark.kubernetes.driver.pod.name": "$(POD)",
        "spark.driver.host": "$(POD_IP)",
    }
    settings.setdefault("spark.kubernetes.container.image", image)
    words = ["spark-submit", "--master", project.master, "--deploy-mode", "client", "--name", project.name]
    for key, value in sorted(settings.items()):
        words += ["--conf", f"{key}={value}"]
    return [*words, str(PROJECT_HOME / _MAIN)]


def dns_name(name: str) -> str:
    """The project's name as Kubernetes takes names of objects."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].strip("-")
