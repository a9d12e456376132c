"""The checks find what is broken: one file is spoilt at a time, and the fault must be named."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import base_images
import check

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = ["docs/how-to/alerts.md", "docs/how-to/kubernetes.md", "docs/reference/metrics.md", "Cargo.toml", "rust-toolchain.toml", ".dockerignore"]
CHART = "deploy/helm/forebay"
# Of the values of ci/, those that show the faults of the chart.
ENOUGH = ("statefulset-everything-values.yaml", "statefulset-members-values.yaml")

# Part, file, what is replaced, by what, a word of the fault.
FAULTS = {
    "a network policy by default": (
        "chart",
        "deploy/helm/forebay/values.yaml",
        "networkPolicy:\n  enabled: false",
        "networkPolicy:\n  enabled: true",
        "NetworkPolicy by default",
    ),
    "a network policy that opens another port": (
        "chart",
        "deploy/helm/forebay/templates/networkpolicy.yaml",
        "{{- with .Values.networkPolicy.trainers }}\n    - from: {{ toYaml . | nindent 8 }}\n      ports: [{ port: grpc }]",
        "{{- with .Values.networkPolicy.trainers }}\n    - from: {{ toYaml . | nindent 8 }}\n      ports: [{ port: http }]",
        "NetworkPolicy opens",
    ),
    "an increase of a gauge": (
        "prometheus",
        "deploy/prometheus/alerts.yaml",
        "increase(forebay_reload_errors_total",
        "increase(forebay_caller_resources",
        "which is a gauge and no counter",
    ),
    "an expression that is none": (
        "prometheus",
        "deploy/prometheus/alerts.yaml",
        '{job="forebay"} == 1',
        '{job="forebay"} === 1',
        "parse",
    ),
    "another threshold": (
        "prometheus",
        "deploy/prometheus/alerts.yaml",
        'process_max_fds{job="forebay"} > 0.8',
        'process_max_fds{job="forebay"} > 0.9',
        "ForebayFilesNearLimit",
    ),
    "another word": (
        "prometheus",
        "deploy/prometheus/alerts.yaml",
        "cannot be opened on",
        "is gone from",
        "ForebayDatasetUnavailable",
    ),
    "an alert that a healthy server sets off": (
        "prometheus",
        "deploy/prometheus/alerts.yaml",
        'process_max_fds{job="forebay"} > 0.8',
        'process_max_fds{job="forebay"} > 0.1',
        "alertstate",
    ),
    "an alert without a test": (
        "prometheus",
        "deploy/prometheus/alerts_test.yaml",
        "alertname: ForebayDraining\n",
        "alertname: ForebayDown\n",
        "ForebayDraining: no test",
    ),
    "an alert without a runbook": (
        "prometheus",
        "docs/how-to/alerts.md",
        "### ForebayInputBound\n",
        "### InputBound\n",
        "no runbook '### ForebayInputBound'",
    ),
    "a link to another runbook": (
        "prometheus",
        "deploy/prometheus/alerts.yaml",
        "#forebaydown",
        "#down",
        "runbook_url",
    ),
    "a scrape without targets": (
        "prometheus",
        "deploy/prometheus/prometheus.yml",
        "static_configs:",
        "static_config:",
        "static_config",
    ),
    "a rules file that is not there": (
        "prometheus",
        "deploy/prometheus/prometheus.yml",
        "- alerts.yaml",
        "- alarms.yaml",
        "alarms.yaml",
    ),
    "a dashboard that was not written again": (
        "dashboard",
        "deploy/grafana/dashboard.py",
        "Rows of produced batches.",
        "Rows of all batches.",
        "run it",
    ),
    "a dashboard that was changed by hand": (
        "dashboard",
        "deploy/grafana/forebay.json",
        '"refresh": "10s"',
        '"refresh": "5s"',
        "run it",
    ),
    "a dashboard that is no JSON": (
        "dashboard",
        "deploy/grafana/forebay.json",
        '"panels": [',
        '"panels": ',
        "forebay.json",
    ),
    "a panel whose expression is none": (
        "dashboard",
        "deploy/grafana/forebay.json",
        "forebay_streams{",
        "forebay_streams{{",
        "parse",
    ),
    "a variable that is none": (
        "dashboard",
        "deploy/grafana/forebay.json",
        "forebay_streams{job=\\\"forebay\\\", instance=~\\\"$instance\\\"",
        "forebay_streams{instance=~\\\"$host\\\"",
        "$host",
    ),
    "an instruction that is none": ("image", "deploy/Dockerfile", "WORKDIR /src", "WORKDR /src", "hadolint"),
    "packages that are not pinned": (
        "image",
        "deploy/Dockerfile",
        "COPY . .",
        "RUN apt-get update && apt-get install gcc\nCOPY . .",
        "DL3008",
    ),
    "a compiler of another version": ("image", "deploy/Dockerfile", "ARG RUST=1", "ARG RUST=2", "rust-toolchain.toml"),
    "a server that is root": ("image", "deploy/Dockerfile", "USER 65532:65532", "USER root", "USER"),
    "a crate that is not sent to the build": ("image", ".dockerignore", "!proto\n", "", "proto"),
    "a chart of another version": ("image", f"{CHART}/Chart.yaml", "appVersion: 0", "appVersion: 9", "appVersion"),
    "a service with a key that is none": (
        "compose",
        "deploy/compose/compose.yaml",
        "mem_limit: 2g",
        "memory: 2g",
        "memory",
    ),
    "a volume that is not declared": (
        "compose",
        "deploy/compose/compose.yaml",
        '["cache:/var',
        '["cash:/var',
        "cash",
    ),
    "a dependency that does not exist": (
        "compose",
        "deploy/compose/compose.yaml",
        "demo-upload: { condition",
        "upload: { condition",
        "upload",
    ),
    "YAML that is none": ("compose", "deploy/compose/compose.yaml", "services:\n", "services: [\n", "compose.yaml"),
    "an image of any version": (
        "compose",
        "deploy/compose/compose.yaml",
        "grafana/grafana:13.2.3",
        "grafana/grafana:latest",
        "one version",
    ),
    "a port that is open to other machines": (
        "compose",
        "deploy/compose/compose.yaml",
        '"127.0.0.1:9090:9090"',
        '"9090:9090"',
        "other machines",
    ),
    "a file that is not there": (
        "compose",
        "deploy/compose/compose.yaml",
        "../grafana/forebay.json",
        "../grafana/fore.json",
        "not there",
    ),
    "a template that does not end": ("chart", f"{CHART}/templates/service.yaml", "{{- end }}", "", "helm"),
    "a field that Kubernetes lacks": (
        "chart",
        f"{CHART}/templates/statefulset.yaml",
        "podManagementPolicy:",
        "managementPolicy:",
        "managementPolicy",
    ),
    "a field that Kubernetes wants": (
        "chart",
        f"{CHART}/templates/statefulset.yaml",
        "  serviceName: {{ include \"forebay.fullname\" . }}-headless\n",
        "",
        "serviceName",
    ),
    "a number that is a word": (
        "chart",
        f"{CHART}/templates/_helpers.tpl",
        "failureThreshold: 6",
        "failureThreshold: six",
        "six",
    ),
    "a Service that selects no pod": (
        "chart",
        f"{CHART}/templates/service.yaml",
        'selector: {{ include "forebay.selector" . | nindent 4 }}',
        "selector: { app: forebay }",
        "selects no pod",
    ),
    "a volume that is not mounted": (
        "chart",
        f"{CHART}/templates/_helpers.tpl",
        "    - name: tmp\n      emptyDir: { medium: Memory, sizeLimit: 64Mi }\n",
        "",
        "mounts tmp",
    ),
    "a pod that is killed early": (
        "chart",
        f"{CHART}/templates/_helpers.tpl",
        "{{ add .Values.drainDelaySeconds .Values.gracePeriodSeconds 15 }}",
        "30",
        "grace period",
    ),
    "a digest that is ignored": (
        "chart",
        f"{CHART}/templates/_helpers.tpl",
        "{{- if .Values.image.digest }}",
        "{{- if false }}",
        f"expected forebay@{check.DIGEST}",
    ),
    "pods on one node": (
        "chart",
        f"{CHART}/templates/_helpers.tpl",
        '(eq .Values.kind "StatefulSet") (not .Values.topologySpreadConstraints)',
        "false (not .Values.topologySpreadConstraints)",
        "the defaults: the pods are spread by []",
    ),
    "pods that wait for a node of their own": (
        "chart",
        f"{CHART}/templates/_helpers.tpl",
        "whenUnsatisfiable: ScheduleAnyway",
        "whenUnsatisfiable: DoNotSchedule",
        "waits for a node",
    ),
    "a constraint on other pods": (
        "chart",
        f"{CHART}/templates/_helpers.tpl",
        'matchLabels: {{ include "forebay.selector" . | nindent 10 }}\n  {{- end }}\n  {{- with .Values.topologySpreadConstraints }}',
        "matchLabels: { app: other }\n  {{- end }}\n  {{- with .Values.topologySpreadConstraints }}",
        "selects no pod",
    ),
    "a pod that is root": (
        "chart",
        f"{CHART}/templates/_helpers.tpl",
        "runAsNonRoot: true",
        "runAsNonRoot: false",
        "root",
    ),
    "a ServiceMonitor with a key that is none": (
        "chart",
        f"{CHART}/templates/servicemonitor.yaml",
        "interval:",
        "every:",
        "every",
    ),
    "a value that the schema lacks": (
        "chart",
        f"{CHART}/values.yaml",
        "kind: StatefulSet",
        "kind: StatefulSet\nflavour: sweet",
        "flavour",
    ),
    "members that are not ready": (
        "chart",
        f"{CHART}/templates/service.yaml",
        "publishNotReadyAddresses: false",
        "publishNotReadyAddresses: true",
        "servers that are ready",
    ),
    "a name that does not resolve": (
        "chart",
        f"{CHART}/templates/_helpers.tpl",
        '"$(POD_NAME).{{ include "forebay.fullname" . }}-headless',
        '"$(POD_NAME).{{ include "forebay.fullname" . }}-members',
        "is not test-forebay-0.test-forebay-headless.ml.svc:8815",
    ),
    "a ScaledObject with a field that KEDA lacks": (
        "chart",
        f"{CHART}/templates/scaledobject.yaml",
        "minReplicaCount:",
        "minReplicas:",
        "minReplicas",
    ),
    "a ScaledObject without a field that KEDA requires": (
        "chart",
        f"{CHART}/templates/scaledobject.yaml",
        "    failureThreshold: 3\n",
        "",
        "failureThreshold",
    ),
    "a trigger with a parameter that is none": (
        "chart",
        f"{CHART}/templates/scaledobject.yaml",
        "threshold:",
        "treshold:",
        "treshold",
    ),
    "a fallback that KEDA ignores": (
        "chart",
        f"{CHART}/templates/scaledobject.yaml",
        "metricType: AverageValue",
        "metricType: Value",
        "ignores the fallback",
    ),
    "a query of other pods": (
        "chart",
        f"{CHART}/templates/scaledobject.yaml",
        '-[0-9]+"})',
        '-server-[0-9]+"})',
        "no server of the release",
    ),
    "an autoscaler of another workload": (
        "chart",
        f"{CHART}/templates/scaledobject.yaml",
        "kind: StatefulSet",
        "kind: Deployment",
        "scales",
    ),
    "an upgrade that resets the number of servers": (
        "chart",
        f"{CHART}/templates/statefulset.yaml",
        '{{ include "forebay.replicas" . }}',
        "{{ .Values.replicas }}",
        "servers remain, expected 6",
    ),
    "an upgrade that leaves the number of servers to Kubernetes": (
        "chart",
        f"{CHART}/templates/statefulset.yaml",
        '  replicas: {{ include "forebay.replicas" . }}\n',
        "",
        "leaves 1 of 3 servers",
    ),
    "a template that does not ask the cluster": (
        "chart",
        f"{CHART}/templates/_helpers.tpl",
        'lookup "apps/v1" "StatefulSet" .Release.Namespace (include "forebay.fullname" .) | default dict',
        "dict",
        "leaves 2 of 11 servers",
    ),
    "an autoscaler that deletes volumes": (
        "chart",
        f"{CHART}/values.yaml",
        "whenScaled: Retain",
        "whenScaled: Delete",
        "requires state",
    ),
    "an uninstallation that deletes the state": (
        "chart",
        f"{CHART}/templates/statefulset.yaml",
        '{{ ternary "Delete" "Retain" (ne .Values.state "") }}',
        "Delete",
        "uninstalling deletes the volumes",
    ),
    "settings that are no TOML": (
        "chart",
        f"{CHART}/templates/configmap.yaml",
        "    [datasets]",
        "    [datasets",
        "forebay.toml",
    ),
    "an example with a field that KEDA lacks": ("guide", check.GUIDE, "minReplicaCount:", "minReplicas:", "minReplicas"),
    "an example with a field that Kubernetes lacks": ("guide", check.GUIDE, "averageValue: 700m", "average: 700m", "average"),
    "an example with a metric that is none": ("guide", check.GUIDE, "sum(forebay_queue_demand_workers", "sum(forebay" "_demand", "no metric"),
    "a guide without an example for the autoscaler of Kubernetes": (
        "guide",
        check.GUIDE,
        "kind: HorizontalPodAutoscaler",
        "kind: Deployment",
        "no HorizontalPodAutoscaler",
    ),
}

# Faults that only an upgrade of a release shows.
UPGRADES = {"an upgrade that resets the number of servers", "a template that does not ask the cluster"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", symlinks=True)
    for name in OUTSIDE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def faults(part: str, root: Path) -> str:
    try:
        return "\n".join(check.PARTS[part](root))
    except check.Broken as error:
        return str(error)
    except check.Missing as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", FAULTS)
def test_it_finds(copy: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part, file, old, new, word = FAULTS[name]
    path = copy / file
    text = path.read_text()
    assert old in text, "the fault is not where it was"
    path.write_text(text.replace(old, new, 1))
    if part == "chart":
        # What has nothing to do with the fault takes time.
        monkeypatch.setattr(check, "REFUSED", {})
        monkeypatch.setattr(check, "UPGRADES", check.UPGRADES[1:2] if name in UPGRADES else ())
        monkeypatch.setattr(check, "PODS", dict(list(check.PODS.items())[:2]))
        for values in (copy / CHART / "ci").iterdir():
            if values.name not in ENOUGH:
                values.unlink()
    assert word in faults(part, copy)


def test_a_released_image_names_its_base_images_by_digest() -> None:
    digest = f"@{check.DIGEST}"
    pinned = f"FROM rust:1-slim{digest} AS build\nRUN make\nFROM gcr.io/cc{digest}\nFROM build\n"
    assert base_images.unpinned(pinned) == []
    for image in ("rust:1-slim", "gcr.io/cc"):
        (fault,) = base_images.unpinned(pinned.replace(image + digest, image))
        assert f"FROM {image} has no digest" in fault
    # The lines of the real file are found, with and without digests.
    text = re.sub(r"@sha256:[0-9a-f]{64}", "", (ROOT / "deploy/Dockerfile").read_text())
    assert len(base_images.unpinned(text)) == text.count("\nFROM ") == 2
