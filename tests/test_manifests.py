"""Test the Kubernetes manifests in examples/cluster: their schemas, names, ports and commands."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from tests.test_docs import parse

yaml = pytest.importorskip("yaml", reason="manifests are read with PyYAML: pip install pyyaml")

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "cluster"
MANIFESTS = {path.name: list(yaml.safe_load_all(path.read_text())) for path in FOLDER.glob("*.yml")}
RESOURCES = [(name, one) for name, found in MANIFESTS.items() for one in found if one]
RELEASES = ("1.30", "1.37")  # releases of Kubernetes


def id_of(resource):
    return f"{resource['kind']}/{resource['metadata']['name']}" if "kind" in resource else None


def containers():
    for name, one in RESOURCES:
        template = one["spec"].get("template")
        if template is not None:
            for container in template["spec"]["containers"]:
                yield name, one, container


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("name", "resource"), RESOURCES, ids=lambda x: id_of(x) if isinstance(x, dict) else x
)
def test_the_schema_of_kubernetes_accepts_each_resource(name, resource, release):
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    schemas.validate(resource, release, strict=True)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("Service", {"spec": {"ports": [{"name": "http"}]}}),
        ("StatefulSet", {"spec": {"replicas": "two"}}),
        ("Deployment", {"spec": {"replica": 1}}),
    ],
)
def test_the_schema_refuses_what_is_wrong(kind, change):
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    right = next(one for _, one in RESOURCES if one["kind"] == kind)
    wrong = {**right, "spec": {**right["spec"], **change["spec"]}}
    with pytest.raises(schemas.ValidationError):
        schemas.validate(wrong, RELEASES[-1], strict=True)


@pytest.mark.parametrize("name", MANIFESTS)
def test_services_select_pods_that_listen_on_their_ports(name):
    pods = [
        (one["spec"]["template"]["metadata"]["labels"], one["spec"]["template"]["spec"])
        for one in MANIFESTS[name]
        if one and "selector" in one["spec"] and "template" in one["spec"]
    ]
    for service in (one for one in MANIFESTS[name] if one and one["kind"] == "Service"):
        (spec,) = (spec for labels, spec in pods if labels == service["spec"]["selector"])
        (port,) = service["spec"]["ports"]
        assert {"containerPort": port["port"]} in spec["containers"][0]["ports"]


@pytest.mark.parametrize(("name", "resource", "container"), list(containers()), ids=str)
def test_containers_of_ours_have_commands_that_parse(name, resource, container):
    arguments = [str(one) for one in container["args"]]
    if container["image"] == "fairbench":
        parse(arguments)
    if arguments[0] == "serve":
        made = CliRunner().invoke(app, [*arguments, "--dry-run"])
        assert made.exit_code == 0, made.output
    (port,) = [one["containerPort"] for one in container.get("ports", [{"containerPort": None}])]
    said = re.findall(r"--port[= ](\d+)", " ".join(arguments))
    assert said in ([], [str(port)])
    for probe in ("startupProbe", "readinessProbe"):
        if probe in container:
            assert container[probe]["httpGet"]["port"] == port


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_router_knows_every_worker(name):
    sets = {
        one["metadata"]["name"]: one
        for one in MANIFESTS[name]
        if one and one["kind"] == "StatefulSet"
    }
    workers = {
        f"{place}-{number}.{one['spec']['serviceName']}:{one['spec']['template']['spec']['containers'][0]['ports'][0]['containerPort']}"
        for place, one in sets.items()
        for number in range(one["spec"]["replicas"])
    }
    (router,) = (c for n, _, c in containers() if n == name and c["args"][0] == "serve")
    urls = [one.partition("=")[2] for one in router["args"] if one.startswith("--worker-url=")]
    assert {urlsplit(url).netloc for url in urls} == workers
    assert len(urls) == len(workers)


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_router_accepts_its_own_name(name):
    """The router refuses a Host that it does not know, such as the name of its service."""
    (router,) = (c for n, _, c in containers() if n == name and c["args"][0] == "serve")
    assert "--allow-host=fairbench-router" in router["args"]


def test_engines_start_as_readme_says():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    engines = [c for n, _, c in containers() if n == "engines.yml" and c["image"] != "fairbench"]
    assert len(engines) == 2
    for one in engines:
        assert " ".join(one["command"]).replace("python3", "python") in readme
        assert one["env"] == [{"name": "FAIRBENCH_LOCAL", "value": "vtc"}]
    install = re.search(r"--no-deps \. \S+", (FOLDER / "Containerfile.engine").read_text())
    assert f"pip install {install[0]}" in readme
