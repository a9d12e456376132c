#!/usr/bin/env python3
"""Writes forebay.json, Grafana's dashboard. Change it here: `python3 deploy/grafana/dashboard.py`, and commit both.

The page of a server says where its own sessions' time goes now; this says it of all servers, over time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("forebay.json")
COLUMNS = 24
SERVERS = 'job="forebay", instance=~"$instance"'
DATASETS = f'{SERVERS}, dataset=~"$dataset"'
SOURCE = {"type": "prometheus", "uid": "$datasource"}
# Buckets of a session's time, in the order of the picture, with the colours of the page.
BUCKETS = {
    "consumer": "green",
    "downstream": "semi-dark-green",
    "network": "blue",
    "gather": "purple",
    "decode": "orange",
    "storage": "red",
    "admission": "yellow",
}
STALLED = f'{DATASETS}, bucket=~"network|gather|decode|storage|admission"'
RUNBOOKS = "https://github.com/forebay/forebay/blob/main/docs/operations.md#alerts"

Panel = dict[str, Any]


def rate(metric: str, selector: str = SERVERS) -> str:
    return f"rate({metric}{{{selector}}}[$__rate_interval])"


def total(metric: str, by: str, selector: str = SERVERS) -> str:
    return f"sum by ({by}) ({rate(metric, selector)})"


def quantile(q: float, metric: str, by: str, selector: str = SERVERS) -> str:
    return f"histogram_quantile({q}, sum by ({by}, le) ({rate(metric + '_bucket', selector)}))"


def panel(kind: str, title: str, about: str, queries: dict[str, str], unit: str, width: int, height: int) -> Panel:
    """`queries` are expressions by the names of their lines."""
    targets = [
        {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expression, "legendFormat": name, "range": True}
        for number, (name, expression) in enumerate(queries.items())
    ]
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {},
    }


def lines(title: str, about: str, queries: dict[str, str], unit: str, width: int = 8, stack: bool = False) -> Panel:
    made = panel("timeseries", title, about, queries, unit, width, 8)
    made["fieldConfig"]["defaults"]["custom"] = {
        "lineWidth": 1,
        "fillOpacity": 60 if stack else 8,
        "showPoints": "never",
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
    }
    made["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return made


def number(title: str, about: str, expression: str, unit: str, steps: list[tuple[float | None, str]]) -> Panel:
    """The last value, coloured from each step's value on."""
    made = panel("stat", title, about, {"": expression}, unit, 4, 4)
    made["targets"][0] |= {"range": False, "instant": True}
    made["fieldConfig"]["defaults"]["thresholds"] = {
        "mode": "absolute",
        "steps": [{"value": value, "color": color} for value, color in steps],
    }
    made["options"] = {"colorMode": "value", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return made


def coloured(made: Panel, colours: dict[str, str]) -> Panel:
    made["fieldConfig"]["overrides"] = [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for name, colour in colours.items()
    ]
    return made


def verdict() -> Panel:
    """The name of the limit, and not a number."""
    expression = f"forebay_verdict{{{SERVERS}}} == 1"
    made = number("Verdict", "What limits the sessions, as each server sees it now.", expression, "none", [(None, "text")])
    made["targets"][0]["legendFormat"] = "{{limit}}"
    made["options"]["textMode"] = "name"
    return made


def share(part: str, whole: str) -> str:
    return f"sum({part}) / sum({whole})"


SECONDS = "forebay_session_seconds_total"
GPU_SECONDS = "forebay_trainer_gpu_seconds_total"
GOOD_BELOW = [(None, "green"), (0.05, "yellow"), (0.2, "red")]
GOOD_ABOVE = [(None, "red"), (0.8, "yellow"), (0.95, "green")]

ROWS: dict[str, list[Panel]] = {
    "Where is the stall": [
        verdict(),
        number(
            "Utilization",
            "Share of the sessions' time in which trainers compute; with the network where they do not report.",
            share(rate(SECONDS, f'{DATASETS}, bucket=~"consumer|downstream"'), rate(SECONDS, DATASETS)),
            "percentunit",
            GOOD_ABOVE,
        ),
        number(
            "Stall",
            "Share of the sessions' time in which trainers wait for data. Alert ForebayInputBound above 20 %.",
            share(rate(SECONDS, STALLED), rate(SECONDS, DATASETS)),
            "percentunit",
            GOOD_BELOW,
        ),
        number("Sessions", "Streams to trainers.", f"sum(forebay_sessions{{{DATASETS}}})", "none", [(None, "text")]),
        number(
            "GPU utilization",
            "Mean of what the trainers' hosts report.",
            share(rate(GPU_SECONDS, f'{DATASETS}, state="busy"'), rate(GPU_SECONDS, DATASETS)),
            "percentunit",
            [(None, "red"), (0.5, "yellow"), (0.8, "green")],
        ),
        number(
            "Idle GPU cost an hour",
            "What the waiting costs, with --gpu-hour-cost.",
            f"sum({rate('forebay_idle_gpu_cost_total')}) * 3600",
            "none",
            [(None, "text")],
        ),
        coloured(
            lines(
                "Where the time goes",
                "Seconds of sessions a second, by bucket: the height is the number of sessions.",
                {"{{bucket}}": total(SECONDS, "bucket", DATASETS)},
                "none",
                16,
                stack=True,
            ),
            BUCKETS,
        ),
        lines(
            "Trainers' own time",
            "As the trainers report it.",
            {"{{activity}}": total("forebay_trainer_seconds_total", "activity", DATASETS)},
            "none",
            stack=True,
        ),
        lines(
            "Stall by dataset",
            "The worst first.",
            {"{{dataset}}": f"{total(SECONDS, 'dataset', STALLED)} / {total(SECONDS, 'dataset', DATASETS)}"},
            "percentunit",
        ),
        lines(
            "Label skew",
            "Sessions whose batches' labels are not mixed.",
            {"{{dataset}}": f"sum by (dataset) (forebay_label_skewed_sessions{{{DATASETS}}})"},
            "none",
        ),
        lines(
            "Events",
            "What happened, by kind: datasets, sessions, workers, the cache.",
            {"{{kind}}": f"sum by (kind) (increase(forebay_events_total{{{SERVERS}}}[$__rate_interval]))"},
            "none",
        ),
    ],
    "Pipeline": [
        lines(
            "Throughput",
            "Bytes a second of each stage.",
            {"{{stage}}": total("forebay_stage_bytes_total", "stage")},
            "Bps",
        ),
        lines(
            "Work in progress",
            "Mean number of things that each stage works on at a time: its seconds a second.",
            {"{{stage}}": total("forebay_stage_seconds_total", "stage")},
            "none",
        ),
        lines(
            "Queues of the stages",
            "What waits for each stage now. The one behind the limit fills.",
            {"{{stage}}": f"sum by (stage) (forebay_stage_queue{{{SERVERS}}})"},
            "none",
        ),
        lines("Rows", "Rows of batches made.", {"{{instance}}": total("forebay_batch_rows_total", "instance")}, "rowsps"),
        lines(
            "Time to gather a batch",
            "The slowest hundredth and the middle.",
            {
                "p99": quantile(0.99, "forebay_gather_duration_seconds", "job"),
                "p50": quantile(0.5, "forebay_gather_duration_seconds", "job"),
            },
            "s",
        ),
        lines(
            "Time to decode a block",
            "The slowest hundredth and the middle.",
            {
                "p99": quantile(0.99, "forebay_decode_duration_seconds", "job"),
                "p50": quantile(0.5, "forebay_decode_duration_seconds", "job"),
            },
            "s",
        ),
    ],
    "Cache": [
        lines(
            "Hits by bytes",
            "Share of the bytes that each tier had.",
            {
                "{{tier}}": f"{total('forebay_cache_hit_bytes_total', 'tier')} / ({total('forebay_cache_hit_bytes_total', 'tier')}"
                f" + {total('forebay_cache_miss_bytes_total', 'tier')})"
            },
            "percentunit",
        ),
        lines(
            "How full",
            "Of its budget. A full tier is a good one; evictions say whether it is too small.",
            {
                "{{instance}} {{tier}}": f"forebay_cache_resident_bytes{{{SERVERS}}}"
                f" / (forebay_cache_capacity_bytes{{{SERVERS}}} > 0)"
            },
            "percentunit",
        ),
        lines(
            "Time saved",
            "Seconds of reading and decoding that each tier saves a second.",
            {"{{tier}}": total("forebay_cache_saved_seconds_total", "tier")},
            "none",
        ),
        lines("Evictions", "", {"{{tier}}": total("forebay_cache_evictions_total", "tier")}, "ops"),
        lines(
            "Not taken",
            "Values that a tier did not take, by reason.",
            {"{{tier}} {{reason}}": total("forebay_cache_bypasses_total", "tier, reason")},
            "ops",
        ),
        lines(
            "Trouble",
            "Errors of the disk tier, damaged footers and indexes.",
            {
                "{{tier}} {{kind}}": total("forebay_cache_errors_total", "tier, kind"),
                "footers": f"sum({rate('forebay_storage_corrupt_footers_total')})",
                "indexes": f"sum({rate('forebay_online_corrupt_indexes_total')})",
            },
            "ops",
        ),
    ],
    "Storage": [
        lines(
            "Requests",
            "By operation and what became of them.",
            {"{{operation}} {{outcome}}": total("forebay_storage_requests_total", "operation, outcome")},
            "reqps",
        ),
        lines(
            "Duration of requests",
            "The slowest tenth and the middle.",
            {
                "{{operation}} p90": quantile(0.9, "forebay_storage_request_duration_seconds", "operation"),
                "{{operation}} p50": quantile(0.5, "forebay_storage_request_duration_seconds", "operation"),
            },
            "s",
        ),
        lines(
            "Read amplification",
            "Bytes read for each byte that was wanted: gaps that are read along, and what was read twice.",
            {"": f"sum({rate('forebay_storage_read_bytes_total')}) / sum({rate('forebay_storage_wanted_bytes_total')})"},
            "none",
        ),
        lines("Retries", "", {"{{instance}}": total("forebay_storage_retries_total", "instance")}, "ops"),
        lines(
            "Age of snapshots",
            "Since each was last seen to be the current one.",
            {"{{dataset}}": f"max by (dataset) (forebay_dataset_snapshot_age_seconds{{{DATASETS}}})"},
            "s",
        ),
        lines(
            "Datasets that are open",
            "1 if it is, by server.",
            {"{{instance}} {{dataset}}": f"forebay_dataset_open{{{DATASETS}}}"},
            "none",
        ),
    ],
    "Online": [
        lines(
            "Requests of queues",
            "By what became of them.",
            {"{{queue}} {{outcome}}": total("forebay_queue_requests_total", "queue, outcome")},
            "reqps",
        ),
        lines(
            "Time of a request in its queue, and of its batch",
            "The slowest hundredth: waiting, gathering, the worker.",
            {
                "{{queue}} wait": quantile(0.99, "forebay_queue_wait_seconds", "queue"),
                "{{queue}} gather": quantile(0.99, "forebay_queue_gather_seconds", "queue"),
                "{{queue}} worker": quantile(0.99, "forebay_queue_worker_seconds", "queue"),
            },
            "s",
        ),
        lines(
            "Batches by why they were closed",
            "",
            {"{{queue}} {{reason}}": total("forebay_queue_batches_total", "queue, reason")},
            "ops",
        ),
        lines(
            "Rows a batch",
            "The mean.",
            {"{{queue}}": f"{total('forebay_queue_batch_rows_sum', 'queue')} / {total('forebay_queue_batch_rows_count', 'queue')}"},
            "none",
        ),
        lines(
            "Workers and requests that wait",
            "",
            {
                "{{queue}} workers": f"sum by (queue) (forebay_queue_workers{{{SERVERS}}})",
                "{{queue}} requests": f"sum by (queue) (forebay_queue_requests{{{SERVERS}}})",
            },
            "none",
        ),
        lines(
            "Lookups",
            "Duration, and keys that have no row.",
            {
                "p99": quantile(0.99, "forebay_online_lookup_duration_seconds", "job"),
                "p50": quantile(0.5, "forebay_online_lookup_duration_seconds", "job"),
            },
            "s",
        ),
    ],
    "Calls": [
        lines(
            "gRPC",
            "Calls that have ended; a stream is one call.",
            {"{{method}} {{code}}": total("forebay_grpc_calls_total", "method, code")},
            "reqps",
        ),
        lines(
            "gRPC, how long",
            "The slowest hundredth.",
            {"{{method}}": quantile(0.99, "forebay_grpc_call_duration_seconds", "method")},
            "s",
        ),
        lines(
            "HTTP",
            "",
            {"{{route}} {{code}}": total("forebay_http_requests_total", "route, code")},
            "reqps",
        ),
        lines(
            "HTTP, how long",
            "The slowest hundredth.",
            {"{{route}}": quantile(0.99, "forebay_http_request_duration_seconds", "route")},
            "s",
        ),
        lines(
            "Who could not come in",
            "Connections that did not agree on keys, and certificates and tokens that make no sense.",
            {
                "TLS {{instance}}": total("forebay_tls_errors_total", "instance"),
                "reload {{instance}}": total("forebay_reload_errors_total", "instance"),
            },
            "ops",
        ),
        lines("Streams", "", {"{{instance}}": f"forebay_streams{{{SERVERS}}}"}, "none"),
    ],
    "Process": [
        lines(
            "Memory",
            "Resident, and the budget of frames.",
            {
                "{{instance}}": f"process_resident_memory_bytes{{{SERVERS}}}",
                "{{instance}} budget": f'forebay_cache_capacity_bytes{{{SERVERS}, tier="memory"}}',
            },
            "bytes",
        ),
        lines("Processors", "Cores in use.", {"{{instance}}": total("process_cpu_seconds_total", "instance")}, "none"),
        lines(
            "Delay of the I/O threads",
            "How late they are, the slowest hundredth.",
            {"{{instance}}": quantile(0.99, "forebay_runtime_lag_seconds", "instance")},
            "s",
        ),
        lines(
            "Open files",
            "Files and connections, of what the process may open.",
            {"{{instance}}": f"process_open_fds{{{SERVERS}}} / process_max_fds{{{SERVERS}}}"},
            "percentunit",
        ),
        lines("Threads", "", {"{{instance}}": f"process_threads{{{SERVERS}}}"}, "none"),
        lines(
            "Up for",
            "",
            {"{{instance}}": f"time() - process_start_time_seconds{{{SERVERS}}}"},
            "s",
        ),
    ],
}


def variable(name: str, label: str, metric: str) -> dict[str, Any]:
    """All values of a label, and `All`."""
    query = f'label_values({metric}{{job="forebay"}}, {name})'
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def laid_out(rows: dict[str, list[Panel]]) -> list[Panel]:
    """Panels from left to right, under the title of their row."""
    placed: list[Panel] = []
    top = 0
    for title, panels in rows.items():
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        placed.append({"type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []})
        top, left, height = top + 1, 0, 0
        for each in panels:
            place = each["gridPos"]
            if left + place["w"] > COLUMNS:
                top, left, height = top + height, 0, 0
            place |= {"x": left, "y": top}
            left, height = left + place["w"], max(height, place["h"])
            placed.append(each)
        top += height
    return [{"id": number, **each} for number, each in enumerate(placed, start=1)]


def dashboard() -> dict[str, Any]:
    return {
        "uid": "forebay",
        "title": "Forebay",
        "description": "Where the time of training and serving goes. Made by deploy/grafana/dashboard.py.",
        "tags": ["forebay"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                variable("instance", "Server", "forebay_build_info"),
                variable("dataset", "Dataset", "forebay_dataset_open"),
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "enable": True,
                    "iconColor": "red",
                    "datasource": SOURCE,
                    "expr": 'ALERTS{job="forebay", alertstate="firing"}',
                    "titleFormat": "{{alertname}}",
                    "textFormat": "{{instance}} {{dataset}} {{queue}}",
                }
            ]
        },
        "links": [{"title": "Runbooks", "type": "link", "targetBlank": True, "url": RUNBOOKS}],
        "panels": laid_out(ROWS),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
