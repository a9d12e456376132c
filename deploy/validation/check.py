#!/usr/bin/env python3
"""Checks everything in deploy/ that can be checked without a container, a cluster or a Grafana.

    check.py [--root DIR] [PART ...]      parts: prometheus, dashboard, image, compose, chart, guide

Prints a line a part, and what is wrong with it; ends with 1 if anything is. prepare.py has fetched what this runs. Where a
server has been built (target/release/forebay, or FOREBAY_BIN), it reads the settings of the image and the chart itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from typing import Any, Iterator

import jsonschema
import kubernetes_validate
import yaml

import base_images
import custom_resources
from fake_cluster import Cluster, served

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
TOOLS = HERE.parents[1] / "target" / "deploy"
# The oldest Kubernetes of Chart.yaml's kubeVersion, and the newest whose schemas are at hand.
KUBERNETES = ("1.27", "1.37")
COMMAND_TIMEOUT_S = 120


class Missing(Exception):
    """The requirements of a part are not installed. Contains the reason."""


class Broken(Exception):
    """A file is malformed, so that its content cannot be checked."""


def tool(name: str) -> str:
    for folder in ("bin", "venv/bin"):
        if (path := TOOLS / folder / name).exists():
            return str(path)
    note = TOOLS / "bin" / f"{name}.missing"
    raise Missing(note.read_text().strip() if note.exists() else f"{name} is not there: run deploy/validation/prepare.py")


def run(*command: str | Path, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        env={"PATH": os.environ["PATH"], "HOME": str(TOOLS), **(env or {})},
    )
    return done.returncode, done.stdout, done.stderr


def failed(*command: str | Path) -> Iterator[str]:
    """Yields the output of a command if it fails."""
    status, out, err = run(*command)
    if status != 0:
        yield f"{Path(str(command[0])).name}: {(out + err).strip()}"


def load(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise Broken(f"{path.name}: {error}") from error


def server() -> Path | None:
    path = Path(os.environ.get("FOREBAY_BIN", HERE.parents[1] / "target/release/forebay"))
    return path if path.is_file() else None


def faults_of_rates(root: Path, expressions: dict[str, str]) -> Iterator[str]:
    """Yields the expressions that take the increase of a metric that can fall. After a fall the increase is wrong: it counts as a restart."""
    text = (root / "docs/reference/metrics.md").read_text()
    kinds = dict(re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram)", text, re.M))
    for place, expression in expressions.items():
        for metric in re.findall(r"\b(?:rate|irate|increase)\((\w+)", expression):
            name = re.sub(r"_(bucket|sum|count)$", "", metric)
            kind = kinds.get(metric, kinds.get(name))
            if kind not in ("counter", "histogram"):
                yield f"{place}: takes the increase of {metric}, which is a {kind or 'metric of another program'} and no counter"


# --- prometheus -------------------------------------------------------------------------------------------------------


def prometheus(root: Path) -> Iterator[str]:
    promtool, folder = tool("promtool"), root / "deploy/prometheus"
    yield from failed(promtool, "check", "config", folder / "prometheus.yml")
    yield from failed(promtool, "check", "rules", folder / "alerts.yaml")
    yield from failed(promtool, "test", "rules", folder / "alerts_test.yaml")

    rules = [rule for group in load(folder / "alerts.yaml")["groups"] for rule in group["rules"]]
    yield from faults_of_rates(root, {rule.get("alert", "a recording rule"): rule["expr"] for rule in rules})
    runbooks = set(re.findall(r"^### (Forebay\w+)$", (root / "docs/how-to/alerts.md").read_text(), re.M))
    fired = {
        test["alertname"]
        for case in load(folder / "alerts_test.yaml")["tests"]
        for test in case.get("alert_rule_test", [])
        if test["exp_alerts"]
    }
    names = [rule.get("alert", "a recording rule") for rule in rules]
    if len(set(names)) != len(names):
        yield "alerts.yaml: two alerts of one name"
    for rule, name in zip(rules, names):
        annotations = rule.get("annotations", {})
        for key in ("summary", "description", "runbook_url"):
            if not annotations.get(key):
                yield f"{name}: no {key}"
        if rule.get("labels", {}).get("severity") not in ("warning", "critical"):
            yield f"{name}: severity is not warning or critical"
        if not annotations.get("runbook_url", "").endswith(f"/docs/how-to/alerts.md#{name.lower()}"):
            yield f"{name}: runbook_url does not end with its own name"
        if name not in runbooks:
            yield f"{name}: docs/how-to/alerts.md has no runbook '### {name}'"
        if name not in fired:
            yield f"{name}: no test of alerts_test.yaml makes it fire"
    for name in sorted(runbooks - set(names)):
        yield f"docs/how-to/alerts.md: a runbook for {name}, which is no alert"


# --- dashboard --------------------------------------------------------------------------------------------------------


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (annotation["expr"] for annotation in dashboard["annotations"]["list"])


def overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    return a["x"] < b["x"] + b["w"] and b["x"] < a["x"] + a["w"] and a["y"] < b["y"] + b["h"] and b["y"] < a["y"] + a["h"]


def dashboard(root: Path) -> Iterator[str]:
    promtool, folder = tool("promtool"), root / "deploy/grafana"
    committed = (folder / "forebay.json").read_text()
    try:
        made = json.loads(committed)
    except ValueError as error:
        raise Broken(f"forebay.json: {error}") from error
    if committed != runpy.run_path(str(folder / "dashboard.py"))["text"]():
        yield "forebay.json is not what dashboard.py writes: run it"

    panels = made["panels"]
    if len({panel["id"] for panel in panels}) != len(panels):
        yield "forebay.json: two panels of one id"
    for one, other in combinations(panels, 2):
        if overlap(one["gridPos"], other["gridPos"]):
            yield f"forebay.json: '{one['title']}' lies over '{other['title']}'"
    variables = {f"${each['name']}" for each in made["templating"]["list"]} | {"$__rate_interval", "$__all"}
    for unknown in sorted(set(re.findall(r"\$\w+", committed)) - variables):
        yield f"forebay.json: there is no variable {unknown}"

    yield from faults_of_rates(root, {f"forebay.json: {expression}": expression for expression in expressions(made)})
    # As rules, so that promtool parses them. Values such as Grafana inserts replace its variables.
    filled = [re.sub(r"\$\w+", ".*", each.replace("$__rate_interval", "1m")) for each in expressions(made)]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(filled)]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "panels.yaml")
        path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
        yield from failed(promtool, "check", "rules", path)


# --- image ------------------------------------------------------------------------------------------------------------


def image(root: Path) -> Iterator[str]:
    path = root / "deploy/Dockerfile"
    yield from failed(tool("hadolint"), "--no-color", path)
    text = path.read_text()
    toolchain = tomllib.loads((root / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
    if f"ARG RUST={toolchain}\n" not in text:
        yield f"Dockerfile: builds with another Rust than rust-toolchain.toml ({toolchain})"
    if text.count("\nFROM ") < 2:
        yield "Dockerfile: one stage, so that the compiler is shipped"
    # GitHub sets it in the workflow of a release.
    if os.environ.get("GITHUB_REF_TYPE") == "tag":
        yield from base_images.unpinned(text)
    users = re.findall(r"^USER (\S+)$", text, re.M)
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        yield "Dockerfile: USER is not a number other than root's"

    workspace = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]
    needed = {member.split("/")[0] for member in workspace["members"]} | {"Cargo.toml", "Cargo.lock"}
    let_in = set(re.findall(r"^!(\S+)$", (root / ".dockerignore").read_text(), re.M))
    if needed != let_in:
        yield f".dockerignore: lets in {sorted(let_in)}, the build needs {sorted(needed)}"

    version = workspace["package"]["version"]
    if load(root / "deploy/helm/forebay/Chart.yaml")["appVersion"] != version:
        yield f"Chart.yaml: appVersion is not the workspace's {version}"
    for name, service in load(root / "deploy/compose/compose.yaml")["services"].items():
        if service["image"].startswith("forebay:") and service["image"] != f"forebay:{version}":
            yield f"compose.yaml: {name} is not of version {version}"

    # `docker run -p` without more says what is missing.
    if binary := server():
        env = dict(re.findall(r"(FOREBAY_(?:GRPC|HTTP))=(\S+)", text))
        status, _, err = run(binary, "serve", "--print-config", env=env)
        if status == 0 or not all(flag in err for flag in ("--tls-certificate", "--tls-key", "--tokens", "--insecure")):
            yield f"Dockerfile: its environment does not make the server name what is missing: {err}"


# --- compose ----------------------------------------------------------------------------------------------------------


def compose(root: Path) -> Iterator[str]:
    folder = root / "deploy/compose"
    status, out, err = run(tool("docker-compose"), "--file", folder / "compose.yaml", "config", "--format", "json")
    if status != 0:
        raise Broken(f"compose.yaml: {err.strip()}")
    for name, service in json.loads(out)["services"].items():
        if not re.search(r":[\w.-]*\d[\w.-]*(@sha256:[0-9a-f]{64})?$", service["image"]):
            yield f"compose.yaml: {name}: {service['image']} is not of one version"
        for port in service.get("ports", []):
            if port.get("host_ip") != "127.0.0.1":
                yield f"compose.yaml: {name}: port {port['target']} is open to other machines"
        for volume in service.get("volumes", []):
            if volume["type"] == "bind" and not Path(volume["source"]).exists():
                yield f"compose.yaml: {name}: {volume['source']} is not there"

    sources = load(folder / "grafana/datasources/prometheus.yaml")["datasources"]
    if [source["type"] for source in sources] != ["prometheus"]:
        yield "datasources/prometheus.yaml: is not one Prometheus"
    (provider,) = load(folder / "grafana/dashboards/forebay.yaml")["providers"]
    shown = {volume["target"] for volume in json.loads(out)["services"]["grafana"]["volumes"]}
    if not any(target.startswith(provider["options"]["path"] + "/") for target in shown):
        yield "dashboards/forebay.yaml: looks where compose.yaml puts no dashboard"


# --- chart ------------------------------------------------------------------------------------------------------------

# Values that the chart must reject, and a word of the reason.
REFUSED = {
    "datasets.clicks=s3://b/c": "insecure=true",
    "insecure=true": "datasets is empty",
    "insecure=true,datasets.clicks=s3://b/c,kind=Deployment": "kind",
    "insecure=true,datasets.clicks=s3://b/c,replica=2": "replica",
    "insecure=true,datasets.clicks=s3://b/c,cacheMemory=much": "cacheMemory",
    "insecure=true,datasets.clicks=s3://b/c,cache.persistent=false": "cacheDisk",
    "insecure=true,datasets.clicks=s3://b/c,cache.persistent=false,cacheDisk=90GiB": "requires state",
    "insecure=true,datasets.clicks=s3://b/c,cache.whenScaled=Delete": "requires state",
    "insecure=true,datasets.clicks=s3://b/c,tls.clientAuth=true": "tls.secretName",
    "insecure=true,datasets.clicks=s3://b/c,socket.enabled=true": "DaemonSet",
    "datasets.clicks=s3://b/c,tls.secretName=t": "tokens.secretName",
    "insecure=true,datasets.clicks=s3://b/c,members.enabled=true": "requires state",
    "insecure=true,datasets.clicks=s3://b/c,state=s3://b/s,kind=DaemonSet,members.enabled=true": "requires kind=StatefulSet",
    "datasets.clicks=s3://b/c,tls.secretName=t,tokens.secretName=t,state=s3://b/s,members.enabled=true": "members.tokenSecret.name",
    "insecure=true,datasets.clicks=s3://b/c,autoscaling.enabled=true": "requires members.enabled",
    "insecure=true,datasets.clicks=s3://b/c,autoscaling.minReplicas=1": "minReplicas",
    "insecure=true,datasets.clicks=s3://b/c,networkBandwidth=fast": "networkBandwidth",
    "insecure=true,datasets.clicks=s3://b/c,state=s3://b/s,members.enabled=true,autoscaling.enabled=true,"
    "autoscaling.minReplicas=5,autoscaling.maxReplicas=4": "maxReplicas",
    "insecure=true,datasets.clicks=s3://b/c,state=s3://b/s,members.enabled=true,members.zone=a,members.zoneFromPodLabel=true": "zoneFromPodLabel",
}


def faults_of(manifest: dict[str, Any]) -> Iterator[str]:
    """Yields the reasons for which a cluster would reject the manifest."""
    name = f"{manifest['kind']} {manifest['metadata']['name']}"
    if schema := custom_resources.SCHEMAS.get(manifest["kind"]):
        for error in jsonschema.Draft7Validator(schema).iter_errors(manifest):
            yield f"{name}: {error.json_path}: {error.message}"
        return
    for version in KUBERNETES:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            yield f"{name}: Kubernetes {version} has no {manifest['kind']} in {manifest['apiVersion']}"
        except kubernetes_validate.ValidationError as error:
            where = ".".join(str(step) for step in error.path)
            yield f"{name}: {where}: {error.message} (Kubernetes {version})"


def environment(container: dict[str, Any], pod_name: str) -> dict[str, str]:
    """Returns the environment of a container as the kubelet sets it."""
    fields = {"metadata.name": pod_name, "metadata.labels['topology.kubernetes.io/zone']": "zone-a"}
    env: dict[str, str] = {}
    for each in container["env"]:
        value = each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        env[each["name"]] = re.sub(r"\$\((\w+)\)", lambda reference: env.get(reference[1], reference[0]), value)
    return env


def faults_of_members(by_kind: dict[str, list[dict[str, Any]]], env: dict[str, str]) -> Iterator[str]:
    """Yields the reasons for which the servers would not find each other, or an autoscaler would scale the wrong thing."""
    (workload,) = by_kind.get("StatefulSet", []) + by_kind.get("DaemonSet", [])
    services = {each["metadata"]["name"]: each["spec"] for each in by_kind["Service"]}
    if members := env.get("FOREBAY_MEMBERS"):
        kind, host, port = members.split(":")
        name, namespace = host.split(".")[:2]
        service = services.get(name, {})
        if kind != "dns" or service.get("clusterIP") != "None" or service.get("publishNotReadyAddresses") is not False:
            yield f"FOREBAY_MEMBERS={members} is no headless Service of the servers that are ready"
        # Kubernetes gives the pods of a StatefulSet names below this Service alone.
        expected = f"{workload['metadata']['name']}-0.{workload['spec']['serviceName']}.{namespace}.svc:{port}"
        if env.get("FOREBAY_ADVERTISE") != expected:
            yield f"FOREBAY_ADVERTISE={env.get('FOREBAY_ADVERTISE')} is not {expected}, the name of the pod"
        if not services.get(workload["spec"]["serviceName"], {}).get("publishNotReadyAddresses"):
            yield "the name of a pod that is not ready does not resolve"
    for scaler in by_kind.get("ScaledObject", []) + by_kind.get("HorizontalPodAutoscaler", []):
        spec, name = scaler["spec"], scaler["kind"]
        target = {"apiVersion": workload["apiVersion"], "kind": workload["kind"], "name": workload["metadata"]["name"]}
        if spec["scaleTargetRef"] != target:
            yield f"{name}: scales {spec['scaleTargetRef']} instead of {target}"
        least, most = spec.get("minReplicaCount", spec.get("minReplicas")), spec.get("maxReplicaCount", spec.get("maxReplicas"))
        # Kubernetes sets a missing number to 1.
        if workload["spec"].get("replicas", 1) < least:
            yield f"{name}: an upgrade without access to the cluster leaves {workload['spec'].get('replicas', 1)} of {least} servers"
        if not 2 <= least <= most:
            yield f"{name}: {least} to {most} servers"
        if name == "ScaledObject" and spec["triggers"][0].get("metricType") != "AverageValue":
            yield f"{name}: KEDA ignores the fallback without metricType AverageValue"
    (monitored,) = by_kind.get("ServiceMonitor", [None])
    for scaler in by_kind.get("ScaledObject", []):
        pods = re.search(r'pod=~"([^"]+)"', scaler["spec"]["triggers"][0]["metadata"]["query"])
        if not (pods and re.fullmatch(pods[1], f"{workload['metadata']['name']}-0")):
            yield "ScaledObject: the query has no server of the release"
        if monitored is None:
            yield "ScaledObject: no ServiceMonitor, so that Prometheus has no metrics of the servers"


def faults_between(manifests: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the references between manifests that do not match, and unsafe settings of the pod."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for manifest in manifests:
        by_kind.setdefault(manifest["kind"], []).append(manifest)
    (workload,) = by_kind.get("StatefulSet", []) + by_kind.get("DaemonSet", [])
    template = workload["spec"]["template"]
    labels, pod = template["metadata"]["labels"].items(), template["spec"]
    (container,) = pod["containers"]
    ports = {port["name"] for port in container["ports"]}
    env = environment(container, f"{workload['metadata']['name']}-0")

    selectors = [("the workload", workload["spec"]["selector"]["matchLabels"])]
    selectors += [(f"Service {each['metadata']['name']}", each["spec"]["selector"]) for each in by_kind["Service"]]
    for each in by_kind.get("PodDisruptionBudget", []):
        selectors.append(("PodDisruptionBudget", each["spec"]["selector"]["matchLabels"]))
    for each in by_kind.get("NetworkPolicy", []):
        selectors.append(("NetworkPolicy", each["spec"]["podSelector"]["matchLabels"]))
    for owner, selector in selectors:
        if not selector.items() <= labels:
            yield f"{owner} selects no pod of the chart"
    for each in by_kind["Service"]:
        for port in each["spec"]["ports"]:
            if port["targetPort"] not in ports:
                yield f"Service {each['metadata']['name']}: the pod has no port {port['targetPort']}"
    for monitor in by_kind.get("ServiceMonitor", []):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        chosen = [each for each in by_kind["Service"] if wanted <= each["metadata"]["labels"].items()]
        if len(chosen) != 1:
            yield f"ServiceMonitor selects {len(chosen)} Services, so that a server is scraped so often"
    if workload["kind"] == "StatefulSet" and workload["spec"]["serviceName"] not in (
        each["metadata"]["name"] for each in by_kind["Service"] if each["spec"].get("clusterIP") == "None"
    ):
        yield "the StatefulSet's serviceName is no headless Service"

    yield from faults_of_members(by_kind, env)

    claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
    volumes = {volume["name"] for volume in pod["volumes"]} | claims
    for mount in container["volumeMounts"]:
        if mount["name"] not in volumes:
            yield f"the pod mounts {mount['name']}, which it does not have"
    mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
    for name, value in env.items():
        path = value.removeprefix("unix:")
        if path.startswith("/") and not any(path == each or path.startswith(f"{each}/") for each in mounted):
            yield f"{name}={value} lies in no volume, and the root file system is read-only"
    drain_seconds = sum(int(env[name].rstrip("s")) for name in ("FOREBAY_DRAIN_DELAY", "FOREBAY_GRACE_PERIOD"))
    if not pod["terminationGracePeriodSeconds"] > drain_seconds:
        yield "the pod is killed before its grace period is over"
    security = container["securityContext"]
    if not (pod["securityContext"].get("runAsNonRoot") and security.get("readOnlyRootFilesystem")):
        yield "the pod may run as root, or write to its root file system"
    if security.get("allowPrivilegeEscalation") is not False or security["capabilities"] != {"drop": ["ALL"]}:
        yield "the container may do more than a plain process"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if probe not in container:
            yield f"there is no {probe}"


def faults_of_settings(manifests: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the errors in forebay.toml that the TOML parser and, if it is built, the server report."""
    texts = [each["data"]["forebay.toml"] for each in manifests if "forebay.toml" in each.get("data", {})]
    (text,) = texts
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        yield f"forebay.toml: {error}"
        return
    if binary := server():
        (workload,) = (each for each in manifests if each["kind"] in ("StatefulSet", "DaemonSet"))
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "forebay.toml")
            config.write_text(text)
            args = [str(config) if arg == "/etc/forebay/forebay.toml" else arg for arg in container["args"]]
            env = environment(container, f"{workload['metadata']['name']}-0")
            status, _, err = run(binary, *args, "--print-config", env=env)
        if status != 0:
            yield f"the server does not take the settings: {err.strip()}"


def rendered(chart: Path, values: Path) -> Iterator[str]:
    helm = tool("helm")
    yield from failed(helm, "lint", "--strict", "--quiet", chart, "--values", values)
    status, out, err = run(helm, "template", "test", chart, "--namespace", "ml", "--values", values)
    if status != 0:
        raise Broken(f"helm template: {err.strip()}")
    try:
        manifests = [each for each in yaml.safe_load_all(out) if each]
    except yaml.YAMLError as error:
        raise Broken(f"is no YAML: {error}") from error
    faults = [fault for manifest in manifests for fault in faults_of(manifest)]
    yield from faults
    if faults:
        return
    yield from faults_between(manifests)
    yield from faults_of_settings(manifests)
    kinds = {manifest["kind"] for manifest in manifests}
    if "PrometheusRule" in kinds:
        (rule,) = (each for each in manifests if each["kind"] == "PrometheusRule")
        if rule["spec"] != load(chart.parents[1] / "prometheus/alerts.yaml"):
            yield "the PrometheusRule has other alerts than deploy/prometheus/alerts.yaml"


# Values of the network policy, and the ports that it opens to each group of clients; None for no policy.
POLICIES: dict[str, dict[str, str] | None] = {
    "": None,
    "networkPolicy.enabled=true": {},
    "networkPolicy.enabled=true,networkPolicy.trainers[0].namespaceSelector.matchLabels.team=ml,"
    "networkPolicy.monitors[0].namespaceSelector.matchLabels.name=monitoring": {"ml": "grpc", "monitoring": "http"},
}


def faults_of_policies(chart: Path) -> Iterator[str]:
    """The chart has no network policy by default, and one that opens the ports to the named clients if it is turned on."""
    for settings, expected in POLICIES.items():
        values = ",".join(part for part in ("insecure=true,datasets.clicks=s3://b/c", settings) if part)
        status, out, err = run(tool("helm"), "template", "test", chart, "--set", values)
        if status != 0:
            raise Broken(f"helm template --set {values}: {err.strip()}")
        policies = [each for each in yaml.safe_load_all(out) if each and each["kind"] == "NetworkPolicy"]
        if expected is None:
            if policies:
                yield "there is a NetworkPolicy by default, which blocks trainers in other namespaces"
            continue
        if len(policies) != 1:
            yield f"{settings}: {len(policies)} NetworkPolicies, expected one"
            continue
        opened: dict[str, str] = {}
        for rule in policies[0]["spec"]["ingress"]:
            for peer in rule["from"]:
                (label,) = peer["namespaceSelector"]["matchLabels"].values()
                opened[label] = ",".join(port["port"] for port in rule["ports"])
        if opened != expected:
            yield f"{settings}: the NetworkPolicy opens {opened}, expected {expected}"


DIGEST = f"sha256:{'0123456789abcdef' * 4}"
ZONES = "topologySpreadConstraints[0].topologyKey=topology.kubernetes.io/zone"

# Values, and what they make of the pod: its image, where {version} is that of the chart, and the keys of its topology spread constraints.
PODS: dict[str, tuple[str, list[str]]] = {
    "": ("forebay:{version}", ["kubernetes.io/hostname"]),
    f"image.digest={DIGEST}": (f"forebay@{DIGEST}", ["kubernetes.io/hostname"]),
    f"image.tag=1.2.3,image.digest={DIGEST}": (f"forebay@{DIGEST}", ["kubernetes.io/hostname"]),
    "image.repository=registry.example/forebay,image.tag=1.2.3": ("registry.example/forebay:1.2.3", ["kubernetes.io/hostname"]),
    ZONES: ("forebay:{version}", ["topology.kubernetes.io/zone"]),
    "kind=DaemonSet": ("forebay:{version}", []),
}


def faults_of_pods(chart: Path) -> Iterator[str]:
    """The pods run the named image, and those of a StatefulSet are spread over the nodes unless the values say otherwise."""
    version = load(chart / "Chart.yaml")["appVersion"]
    for settings, (image, keys) in PODS.items():
        values = ",".join(part for part in ("insecure=true,datasets.clicks=s3://b/c", settings) if part)
        status, out, err = run(tool("helm"), "template", "test", chart, "--set", values)
        if status != 0:
            raise Broken(f"helm template --set {values}: {err.strip()}")
        (workload,) = (each for each in yaml.safe_load_all(out) if each and each["kind"] in ("StatefulSet", "DaemonSet"))
        template = workload["spec"]["template"]
        (container,) = template["spec"]["containers"]
        if container["image"] != image.format(version=version):
            yield f"{settings or 'the defaults'}: the image is {container['image']}, expected {image.format(version=version)}"
        constraints = template["spec"].get("topologySpreadConstraints", [])
        if [each["topologyKey"] for each in constraints] != keys:
            yield f"{settings or 'the defaults'}: the pods are spread by {constraints}, expected {keys}"
        for each in constraints if settings != ZONES else []:
            if each["whenUnsatisfiable"] != "ScheduleAnyway":
                yield f"{settings or 'the defaults'}: a server waits for a node without another one"
            if not each["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items():
                yield f"{settings or 'the defaults'}: the constraint selects no pod of the chart"


RELEASE = "test-forebay"
BASE = "insecure=true,datasets.clicks=s3://b/c"
SHARED = f"{BASE},state=s3://b/s"
# Values of a release with an autoscaler, in addition to those without.
AUTOSCALED = "members.enabled=true,autoscaling.enabled=true,autoscaling.minReplicas=2,autoscaling.maxReplicas=16,metrics.serviceMonitor.enabled=true"
# Number of servers before autoscaling is switched on, `replicas` in the values, and the expected number with and without access to the cluster.
UPGRADES = ((3, 3, 3, 3), (6, 1, 6, 2), (1, 1, 2, 2), (9, 4, 9, 4))


def release(chart: Path, cluster: Cluster, values: str, kubeconfig: Path | None) -> int:
    """Installs or upgrades a release, and returns the number of servers. Without a kubeconfig as Argo CD does, which applies the output of
    `helm template`."""
    lookup = ["--dry-run=server", "--is-upgrade", "--disable-openapi-validation", "--kubeconfig", kubeconfig] if kubeconfig else []
    status, out, err = run(tool("helm"), "template", "test", chart, "--namespace", "ml", "--set", values, *lookup)
    if status != 0:
        raise Broken(f"helm template --set {values}: {err.strip()}")
    cluster.apply([each for each in yaml.safe_load_all(out) if each])
    return cluster.stateful_sets[RELEASE]["spec"]["replicas"]


def faults_of_upgrades(chart: Path) -> Iterator[str]:
    """An upgrade keeps the servers that run and their volumes, also when autoscaling is switched on."""
    with tempfile.TemporaryDirectory() as scratch:
        for before, replicas, expected, unseen in UPGRADES:
            what = f"{before} servers, replicas={replicas}, and autoscaling is switched on"
            for how, kept in (("helm upgrade", expected), ("Argo CD", unseen)):
                cluster = Cluster()
                with served(cluster, Path(scratch)) as kubeconfig:
                    seen = kubeconfig if how == "helm upgrade" else None
                    release(chart, cluster, f"{SHARED},replicas={before}", seen)
                    claims = set(cluster.claims)
                    found = release(chart, cluster, f"{SHARED},replicas={replicas},{AUTOSCALED}", seen)
                    if found != kept:
                        yield f"{how}, {what}: {found} servers remain, expected {kept}"
                    if not claims <= cluster.claims:
                        yield f"{how}, {what}: the volumes {sorted(claims - cluster.claims)} are deleted"
                    # The autoscaler adds servers and removes one; then the release is upgraded again.
                    cluster.scale(RELEASE, 12)
                    claims = set(cluster.claims)
                    cluster.scale(RELEASE, 11)
                    found = release(chart, cluster, f"{SHARED},replicas={replicas},{AUTOSCALED},logLevel=debug", seen)
                    if seen and found != 11:
                        yield f"{how}, {what}: the next upgrade leaves {found} of 11 servers"
                    if found < 2:
                        yield f"{how}, {what}: the next upgrade leaves {found} servers, fewer than autoscaling.minReplicas"
                    if claims != cluster.claims:
                        yield f"{how}, {what}: the autoscaler deletes the volumes {sorted(claims - cluster.claims)}"


def faults_of_volumes(chart: Path) -> Iterator[str]:
    """A volume is deleted only if the values ask for that, or if the server can rebuild its content."""
    for values, remain in ((BASE, True), (SHARED, False)):
        cluster = Cluster()
        release(chart, cluster, f"{values},replicas=2", None)
        cluster.scale(RELEASE, 1)
        if len(cluster.claims) != 2:
            yield f"{values}: scaling down deletes a volume by default"
        cluster.delete(RELEASE)
        if bool(cluster.claims) != remain:
            yield f"{values}: uninstalling {'deletes' if remain else 'keeps'} the volumes"
    cluster = Cluster()
    release(chart, cluster, f"{SHARED},replicas=2,cache.whenScaled=Delete", None)
    cluster.scale(RELEASE, 1)
    if len(cluster.claims) != 1:
        yield "cache.whenScaled=Delete keeps the volume of a removed server"


def chart(root: Path) -> Iterator[str]:
    helm, folder = tool("helm"), root / "deploy/helm/forebay"
    cases = sorted((folder / "ci").glob("*-values.yaml"))
    kinds = {load(case).get("kind", "StatefulSet") for case in cases}
    if kinds != {"StatefulSet", "DaemonSet"}:
        yield f"ci/ has values for {sorted(kinds)} alone"

    def faults(values: Path) -> list[str]:
        try:
            return [f"{values.name}: {fault}" for fault in rendered(folder, values)]
        except Broken as error:
            return [f"{values.name}: {error}"]

    def accepted(settings: str, word: str) -> list[str]:
        status, _, err = run(helm, "template", "test", folder, "--set", settings)
        if status == 0:
            return [f"takes {settings}"]
        return [] if word in err else [f"refuses {settings} with other words than '{word}': {err.strip()}"]

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(faults, cases):
            yield from found
        for found in pool.map(accepted, REFUSED, REFUSED.values()):
            yield from found
    yield from faults_of_policies(folder)
    yield from faults_of_pods(folder)
    yield from faults_of_upgrades(folder)
    yield from faults_of_volumes(folder)


# --- guide ------------------------------------------------------------------------------------------------------------

GUIDE = "docs/how-to/kubernetes.md"
# Kinds of the examples that scale the workers of a batch queue.
SCALERS = {"ScaledObject", "HorizontalPodAutoscaler"}


def guide(root: Path) -> Iterator[str]:
    """The manifests in the guide are valid, and the metrics that they, and the rules of the Prometheus adapter, name exist."""
    text, metrics = (root / GUIDE).read_text(), (root / "docs/reference/metrics.md").read_text()
    known = set(re.findall(r"^\| `(\w+)` \|", metrics, re.M))
    found = set()
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S), 1):
        try:
            manifests = [each for each in yaml.safe_load_all(block) if each]
        except yaml.YAMLError as error:
            raise Broken(f"{GUIDE}: block {number}: {error}") from error
        for name in sorted(set(re.findall(r"\bforebay_\w+", block)) - known):
            yield f"{GUIDE}: block {number}: there is no metric {name}"
        for manifest in manifests:
            if "kind" in manifest:
                found.add(manifest["kind"])
                yield from (f"{GUIDE}: block {number}: {fault}" for fault in faults_of(manifest))
    for kind in sorted(SCALERS - found):
        yield f"{GUIDE}: no {kind} for the workers of a batch queue"


PARTS = {"prometheus": prometheus, "dashboard": dashboard, "image": image, "compose": compose, "chart": chart, "guide": guide}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="the repository")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    arguments = parser.parse_args()
    wrong = 0
    for name in arguments.parts or PARTS:
        try:
            faults = list(PARTS[name](arguments.root.resolve()))
        except Missing as reason:
            print(f"skipped: {name}: {reason}")
            continue
        except Broken as error:
            faults = [str(error)]
        print(f"{name}: {'ok' if not faults else 'BROKEN'}", flush=True)
        for fault in faults:
            print(f"  {fault}")
        wrong += len(faults)
    if not server():
        print("not asked: the server itself, which is not built (target/release/forebay, or FOREBAY_BIN)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
