"""A cluster that holds StatefulSets and their volume claims, and that helm can look objects up in.

It does what Kubernetes does with the fields that decide about servers and volumes: a StatefulSet without `replicas` gets one, and the claims
of removed servers are deleted if `persistentVolumeClaimRetentionPolicy` says so.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Iterator

import yaml

# Kinds that the cluster knows, by group and version.
KINDS = {
    "v1": ["ConfigMap", "Service", "ServiceAccount"],
    "apps/v1": ["DaemonSet", "StatefulSet"],
    "autoscaling/v2": ["HorizontalPodAutoscaler"],
    "keda.sh/v1alpha1": ["ScaledObject"],
    "monitoring.coreos.com/v1": ["PrometheusRule", "ServiceMonitor"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
    "policy/v1": ["PodDisruptionBudget"],
}


def discovery() -> dict[str, dict[str, Any]]:
    """Returns the documents that tell a client which kinds there are, by path."""
    documents: dict[str, dict[str, Any]] = {
        "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
    }
    groups = []
    for version, kinds in KINDS.items():
        plural = {kind: f"{kind.lower().removesuffix('y')}ies" if kind.endswith("y") else f"{kind.lower()}s" for kind in kinds}
        resources = [{"name": plural[kind], "namespaced": True, "kind": kind, "verbs": ["get", "list"]} for kind in kinds]
        group, _, number = version.rpartition("/")
        documents[f"/{'apis' if group else 'api'}/{version}"] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        if group:
            served = {"groupVersion": version, "version": number}
            groups.append({"name": group, "versions": [served], "preferredVersion": served})
    documents["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return documents


DOCUMENTS = discovery()


class Cluster:
    def __init__(self) -> None:
        self.stateful_sets: dict[str, dict[str, Any]] = {}
        self.claims: set[str] = set()

    def apply(self, manifests: list[dict[str, Any]]) -> None:
        """Applies the StatefulSets of a release, as an upgrade does."""
        for manifest in manifests:
            if manifest["kind"] == "StatefulSet":
                manifest["spec"].setdefault("replicas", 1)
                self.stateful_sets[manifest["metadata"]["name"]] = manifest
                self._settle(manifest)

    def scale(self, name: str, replicas: int) -> None:
        """Changes the number of servers, as an autoscaler does."""
        self.stateful_sets[name]["spec"]["replicas"] = replicas
        self._settle(self.stateful_sets[name])

    def delete(self, name: str) -> None:
        """Removes a StatefulSet, as an uninstallation does."""
        removed = self.stateful_sets.pop(name)
        if self._policy(removed).get("whenDeleted") == "Delete":
            self.claims.clear()

    def _settle(self, manifest: dict[str, Any]) -> None:
        name, replicas = manifest["metadata"]["name"], manifest["spec"]["replicas"]
        for template in manifest["spec"].get("volumeClaimTemplates", []):
            claims = {f"{template['metadata']['name']}-{name}-{number}" for number in range(replicas)}
            if self._policy(manifest).get("whenScaled") == "Delete":
                self.claims &= claims
            self.claims |= claims

    @staticmethod
    def _policy(manifest: dict[str, Any]) -> dict[str, str]:
        return manifest["spec"].get("persistentVolumeClaimRetentionPolicy", {})

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        if path in DOCUMENTS:
            return 200, DOCUMENTS[path]
        name = path.rsplit("/", 1)[-1]
        if "/statefulsets/" in path and name in self.stateful_sets:
            return 200, self.stateful_sets[name]
        return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


@contextmanager
def served(cluster: Cluster, folder: Path) -> Iterator[Path]:
    """Serves the cluster on a port of this machine while the context is open, and yields the path of its kubeconfig."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = cluster.answer(self.path.split("?")[0])
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "client"}}],
        "users": [{"name": "client", "user": {}}],
        "current-context": "fake",
    }
    path = folder / "kubeconfig.yaml"
    path.write_text(yaml.safe_dump(config))
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()
