from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from py4j.java_collections import JavaMap
from pyspark.sql import SparkSession

from klamm.cli.pipelines import submitted
from klamm.pipelines.deploying import kubernetes
from klamm.pipelines.deploying.kubernetes import manifest
from klamm.pipelines.deploying.yaml import documents
from klamm.pipelines.errors import ProjectError
from klamm.pipelines.project import Project
from tests.pipelines.projects import make_project

MAIN = Path(submitted.__file__)
TOML = """
    [project]
    name = "My.Shop"
    tables = "s3://bucket/tables"
    checkpoints = "s3://bucket/checkpoints"
    [storage]
    aws_access_key_id = "${env:AWS_KEY}"
    aws_secret_access_key = "${file:/run/secrets/aws}"
"""
CODE = "# Größe:\tLänge: |\n\n'''  yes\n'''\n"


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas/order.desc").write_bytes(b"\xff\x00")
    make_project(
        tmp_path, {"orders.py": CODE, "orders_py": "1", "orders/py": "2"}, toml='[project]\nname="x"'
    )
    (tmp_path / "klamm.toml").write_text(TOML)
    return Project.load(tmp_path, without=("storage",))


def by_kind(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in objects}


def test_a_deployment_runs_the_project_from_a_config_map(shop: Project) -> None:
    made = by_kind(manifest(shop, "registry/shop:1", MAIN, ["large"]))
    assert list(made) == ["ConfigMap", "Deployment"]
    config, deployment = made["ConfigMap"], made["Deployment"]
    assert {each["metadata"]["name"] for each in made.values()} == {"my-shop"}
    pod = deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    items = volumes["config"]["configMap"]["items"]
    texts = {item["path"]: config["data"].get(item["key"]) for item in items}
    assert texts["pipelines/orders.py"].endswith(CODE) and texts["klamm.toml"] == TOML
    assert (texts["pipelines/orders_py"][-1], texts["pipelines/orders/py"][-1]) == ("1", "2")
    (key,) = [item["key"] for item in items if item["path"] == "schemas/order.desc"]
    assert base64.b64decode(config["binaryData"][key]) == b"\xff\x00"
    (container,) = pod["containers"]
    run = "klamm pipeline run large --project /project --master local[*]"
    assert container["command"] == run.split()
    secret = {"secretKeyRef": {"name": "my-shop", "key": "AWS_KEY"}}
    assert container["env"] == [{"name": "AWS_KEY", "valueFrom": secret}]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "secrets"]
    assert (mount["mountPath"], mount["subPath"]) == ("/run/secrets/aws", "aws")
    assert volumes["secrets"]["secret"] == {"secretName": "my-shop"}
    assert pod["automountServiceAccountToken"] is False


def test_a_driver_of_pods_has_the_rights_to_start_them(shop: Project) -> None:
    pods = replace(shop, master="k8s://https://kubernetes.default.svc", spark={"spark.executor.memory": "2g"})
    made = by_kind(manifest(pods, "registry/shop:1", MAIN, once=True))
    assert list(made) == ["ConfigMap", "ServiceAccount", "Role", "RoleBinding", "Job"]
    (rule,) = made["Role"]["rules"]
    assert {"pods", "services", "configmaps"} <= set(rule["resources"])
    assert {"create", "delete", "watch"} <= set(rule["verbs"])
    pod = made["Job"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == made["RoleBinding"]["subjects"][0]["name"] == "my-shop"
    assert pod["restartPolicy"] == "OnFailure"
    (container,) = pod["containers"]
    words = container["command"]
    assert words[:5] == ["spark-submit", "--master", pods.master, "--deploy-mode", "client"]
    assert "spark.kubernetes.container.image=registry/shop:1" in words
    assert "spark.executor.memory=2g" in words and "spark.driver.host=$(POD_IP)" in words
    assert words[words.index("/project/klamm_main.py") + 1 :][:3] == ["pipeline", "run", "--once"]
    assert {each["name"] for each in container["env"]} == {"AWS_KEY", "NAMESPACE", "POD", "POD_IP"}


def test_what_a_pod_would_lose_is_refused(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProjectError, match=r"checkpoints = .* the folders of a pod are lost with the pod"):
        manifest(replace(shop, checkpoints=str(shop.root / "checkpoints")), "image", MAIN)
    with pytest.raises(ProjectError, match="a pod cannot start Spark on yarn"):
        manifest(replace(shop, master="yarn"), "image", MAIN)
    monkeypatch.setattr(kubernetes, "MOST_BYTES", 100)
    with pytest.raises(ProjectError, match="a ConfigMap of Kubernetes holds 100"):
        manifest(shop, "image", MAIN)


def test_kubernetes_own_types_know_every_field(spark: SparkSession, shop: Project) -> None:
    """By the client for Kubernetes that Spark has."""
    jvm: Any = spark._jvm
    read = jvm.io.fabric8.kubernetes.client.utils.Serialization.unmarshal
    pods = replace(shop, master="k8s://https://kubernetes.default.svc")
    for objects in (manifest(shop, "image", MAIN), manifest(pods, "image", MAIN, once=True)):
        for wanted in objects:
            assert_known(wanted, read(documents([wanted])), wanted["kind"])
        mistaken = {**objects[0], "dta": {"a": "b"}}
        with pytest.raises(AssertionError, match="dta"):
            assert_known(mistaken, read(documents([mistaken])), "ConfigMap")


def assert_known(wanted: Any, found: Any, place: str) -> None:
    """Every field of `wanted` is one of the Java object's type, and has its value."""
    if isinstance(wanted, dict) and not isinstance(found, JavaMap):
        assert not dict(found.getAdditionalProperties()), (place, dict(found.getAdditionalProperties()))
        for name, value in wanted.items():
            getter = getattr(found, f"get{name[0].upper()}{name[1:]}")
            assert_known(value, getter(), f"{place}.{name}")
    elif isinstance(wanted, dict):
        assert dict(found) == wanted, place
    elif isinstance(wanted, list):
        for number, (each, its) in enumerate(zip(wanted, list(found), strict=True)):
            assert_known(each, its, f"{place}[{number}]")
    else:
        assert found == wanted, place


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30) | st.sampled_from(
    ["yes", "Null", "1e3", "a\nb\n", " a\nb", "a\n\n", "a: b\n- c\n", "\ta\n\tb", "\n", "a\r\nb", "~", "#"]
)
VALUES = st.recursive(
    TEXTS | st.booleans() | st.integers(-(10**9), 10**9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(document=st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_is_written_as_yaml_is_read_again(spark: SparkSession, document: dict[str, Any]) -> None:
    jvm: Any = spark._jvm
    mapper = jvm.com.fasterxml.jackson.dataformat.yaml.YAMLMapper()
    text = documents([document])
    assert json.loads(mapper.readTree(text).toString()) == document, text
