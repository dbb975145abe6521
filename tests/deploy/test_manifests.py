"""Static tests of the systemd unit and the Kubernetes manifests: every name in them refers to
something that exists, and probes, limits and grace periods fit the program."""

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from continuo.engine.wire.handshake import LINK_VERSION
from continuo.realtime.limits import Limits
from continuo.realtime.server.config import options
from continuo.realtime.server.config.settings import DRAIN_GRACE_S
from continuo.realtime.server.process.file_descriptors import count_required
from tests.deploy.stack import ROOT
from tests.support import processes

pytestmark = pytest.mark.process

FOLDER = ROOT / "deploy" / "kubernetes"
UNIT = ROOT / "deploy" / "systemd" / "continuo.service"
WORKLOADS = ("Deployment", "StatefulSet")


def kustomization() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "kustomization.yaml").read_text())


def manifests() -> list[dict[str, Any]]:
    return [
        document
        for name in kustomization()["resources"]
        for document in yaml.safe_load_all((FOLDER / name).read_text())
    ]


def of_kind(*kinds: str) -> dict[str, dict[str, Any]]:
    found = [each for each in manifests() if each["kind"] in kinds]
    return {each["metadata"]["name"]: each for each in found}


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    return workload["spec"]["template"]["spec"]


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    [container] = pod_of(workload)["containers"]
    return container


def environment_of(workload: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container_of(workload).get("env", [])}


# ---------------------------------------------------------------- Kubernetes


@pytest.mark.parametrize("version", ["1.25", None], ids=["oldest", "newest"])
def test_manifests_are_valid_for_kubernetes(version: str | None) -> None:
    """The schemas are those of Kubernetes' API, in their strict form: they have no other fields.
    PodMonitor is a resource of the Prometheus operator."""
    kubernetes = pytest.importorskip("kubernetes_validate", reason="make installs it")
    checked = [each for each in manifests() if each["kind"] != "PodMonitor"]
    assert len(checked) > 10
    for each in checked:
        kubernetes.validate(each, version or kubernetes.latest_version(), strict=True)
    service = {**of_kind("Service")["gateway"], "spec": {"prots": []}}
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(service, version or kubernetes.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_manifests_are_rendered_by_kustomize_with_the_secrets(tmp_path: Path) -> None:
    folder = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, folder)
    command = ["sh", ROOT / "deploy/make_secrets.sh", folder / "secrets"]
    subprocess.run(command, check=True, capture_output=True)
    rendered = subprocess.run(
        ["kubectl", "kustomize", folder], check=True, capture_output=True, text=True
    )
    documents = list(yaml.safe_load_all(rendered.stdout))
    assert len(documents) == len(manifests()) + len(kustomization()["secretGenerator"])
    assert {each["metadata"].get("namespace", "continuo") for each in documents} == {"continuo"}
    engine = next(
        each
        for each in documents
        if each["kind"] == "StatefulSet" and each["metadata"]["name"] == "engine"
    )
    probes = [container_of(engine)[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
    assert len({str(probe["exec"]) for probe in probes}) == 1
    assert [probe["failureThreshold"] for probe in probes] == [360, 12, 3]
    assert container_of(engine)["image"] == "continuo:local"


def test_every_resource_file_is_listed() -> None:
    files = {file.name for file in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == set(kustomization()["resources"])


def test_selectors_match_pods_of_a_workload() -> None:
    labels = [
        workload["spec"]["template"]["metadata"]["labels"]
        for workload in of_kind(*WORKLOADS).values()
    ]
    for manifest in manifests():
        spec = manifest.get("spec", {})
        selectors = [spec.get("selector"), spec.get("podSelector")]
        selectors += [
            peer.get("podSelector") for rule in spec.get("ingress", []) for peer in rule["from"]
        ]
        for selector in filter(None, selectors):
            wanted = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
            assert wanted in labels or "matchExpressions" in selector, manifest["metadata"]
            for expression in selector.get("matchExpressions", ()):
                known = {each[expression["key"]] for each in labels}
                assert set(expression["values"]) <= known


def test_ports_that_are_referred_to_are_named_by_containers() -> None:
    ports = {
        name: {port["name"]: port["containerPort"] for port in container_of(workload)["ports"]}
        for name, workload in of_kind(*WORKLOADS).items()
    }
    for name, service in of_kind("Service").items():
        for port in service["spec"]["ports"]:
            assert ports[name][port["name"]] == port["port"]
    for name, monitor in of_kind("PodMonitor").items():
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert endpoint["port"] in ports[name]
    for name, policy in of_kind("NetworkPolicy").items():
        for rule in policy["spec"]["ingress"]:
            assert {port["port"] for port in rule["ports"]} <= ports[name].keys()
    for name in ("gateway", "engine"):
        environment = environment_of(of_kind(*WORKLOADS)[name])
        own = ports[name].get("http", ports[name].get("link"))
        listening = environment.get("CONTINUO_PORT", environment.get("CONTINUO_LISTEN", ""))
        assert listening.rpartition(":")[2] == str(own)


def test_secrets_that_are_mounted_are_generated(tmp_path: Path) -> None:
    command = ["sh", ROOT / "deploy/make_secrets.sh", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    generated: dict[str, set[str]] = {}
    for generator in kustomization()["secretGenerator"]:
        files = {Path(file).name for file in generator["files"]}
        assert all((tmp_path / file).exists() for file in files)
        generated[generator["name"]] = files
    for workload in of_kind(*WORKLOADS).values():
        [volume] = [each for each in pod_of(workload)["volumes"] if "secret" in each]
        known = generated[volume["secret"]["secretName"]]
        used = re.findall(r"/secrets/(\w+)", str(container_of(workload)))
        assert used
        assert set(used) <= known
    credentials = of_kind("PodMonitor")["gateway"]["spec"]["podMetricsEndpoints"][0]
    assert credentials["authorization"]["credentials"]["key"] in generated["continuo"]


@pytest.mark.parametrize("name", ["gateway", "engine", "redis"])
def test_pods_are_restricted_and_bounded(name: str) -> None:
    """The namespace enforces the pod security standard `restricted`."""
    workload = of_kind(*WORKLOADS)[name]
    pod, container = pod_of(workload), container_of(workload)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]
    assert {"livenessProbe", "readinessProbe"} <= container.keys()


@pytest.mark.parametrize("name", ["gateway", "engine"])
def test_environment_sets_options_and_leaves_time_to_drain(name: str) -> None:
    workload = of_kind(*WORKLOADS)[name]
    environment = environment_of(workload)
    assert container_of(workload)["args"] == [name]
    assert not options.find_unknown_variables(environment)
    grace_s = float(environment["CONTINUO_DRAIN_GRACE_S"])
    assert pod_of(workload)["terminationGracePeriodSeconds"] > grace_s + 10


def test_engines_announce_the_name_of_their_pod() -> None:
    """Gateways connect to each engine by its own name, which the headless Service resolves."""
    engine, service = of_kind("StatefulSet")["engine"], of_kind("Service")["engine"]
    assert engine["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    advertised = environment_of(engine)["CONTINUO_ADVERTISE"]
    assert advertised == f"$(POD_NAME).{service['metadata']['name']}:8100"


def test_disruption_budgets_and_autoscalers_refer_to_workloads() -> None:
    workloads = of_kind(*WORKLOADS)
    assert of_kind("PodDisruptionBudget").keys() == {"gateway", "engine"}
    for name, scaler in of_kind("HorizontalPodAutoscaler").items():
        target = scaler["spec"]["scaleTargetRef"]
        assert workloads[target["name"]]["kind"] == target["kind"]
        assert scaler["spec"]["minReplicas"] >= 2, f"{name}: a budget must allow a disruption"
    metrics = of_kind("HorizontalPodAutoscaler")["engine"]["spec"]["metrics"]
    assert [each["pods"]["metric"]["name"] for each in metrics] == ["vllm:num_requests_waiting"]


# ---------------------------------------------------------------- probes


def engine_probes() -> list[str]:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["engine-1"]
    probe = container_of(of_kind("StatefulSet")["engine"])["readinessProbe"]
    return [compose["healthcheck"]["test"][-1], probe["exec"]["command"][-1]]


def test_engine_probes_offer_the_present_link_version() -> None:
    for script in engine_probes():
        assert f"continuo link {LINK_VERSION}\\n" in script


async def test_probes_of_gateway_and_engine_succeed_and_fail() -> None:
    """Run the scripts of the manifests against real processes, and against nothing."""
    gateway_probe = container_of(of_kind("Deployment")["gateway"])["readinessProbe"]["exec"]
    script = gateway_probe["command"][-1]
    with processes.running_engine() as engine:
        address = processes.read_engine_address(engine)
        with processes.running_gateway("--engine", address, "--store", "memory") as gateway:
            url = processes.read_gateway_url(gateway)
            await processes.wait_ready(url)
            port = url.split(":")[2].split("/")[0]
            assert runs(script.replace(":8000", f":{port}"))
        for probe in engine_probes():
            assert runs(probe.replace("8100", address.split(":")[1]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    assert not runs(script.replace(":8000", f":{port}"))
    assert not runs(engine_probes()[1].replace("8100", port))


def runs(script: str) -> bool:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, timeout=30).returncode == 0


# ---------------------------------------------------------------- systemd


def unit_settings() -> dict[str, str]:
    lines = UNIT.read_text().splitlines()
    pairs = [line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")]
    return {name: value for name, value in pairs if name != "Environment"}


def test_unit_leaves_time_to_drain_and_enough_descriptors() -> None:
    settings = unit_settings()
    assert float(settings["TimeoutStopSec"]) > DRAIN_GRACE_S + 10
    assert int(settings["LimitNOFILE"]) >= count_required(Limits())
    assert settings["KillMode"] == "mixed", "the engine must not get the signal to drain"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_unit_is_valid_and_confined(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"/opt/continuo/bin/continuo", "/bin/true", UNIT.read_text()))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True
    )
    assert verified.stderr == "", verified.stderr
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=40", unit],
        capture_output=True,
        text=True,
    )
    assert rated.returncode == 0, rated.stdout[-300:]
