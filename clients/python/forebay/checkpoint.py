"""The state of a training dataset, as `TrainingDataset.state_dict` returns it."""

from __future__ import annotations

from typing import Any, Mapping

from forebay.errors import CheckpointMismatchError

STATE_VERSION = 1

# Request fields that a state does not set in the dataset that loads it. The global batch has to be the same.
PER_RUN = ("rank", "world_size", "batch_size", "lanes", "job_name", "label_column", "content_hash")
# Request fields that select columns. If the dataset that loads a state has one of them, those of the state are not used.
PROJECTION = ("columns", "tensors", "select", "dedupe")
# Request fields that determine which rows a batch has.
ORDER = ("dataset", "filter", "values", "seed", "shuffle", "group_by", "max_pack_rows", "mix", "remainder", "plan_version", "semantics")
# Version of the semantics of SQL expressions of the states that do not name one.
FIRST_SEMANTICS = "3"
# Request fields that hold a place in the job. A state has its own fields for it.
CURSOR = ("epoch", "epochs", "start_step", "steps", "lane")

# States of earlier versions have these names.
_RENAMED = {"batch_rows": "max_pack_rows", "hash": "content_hash", "job": "job_name", "label": "label_column"}
_RENAMED_WITHIN = {
    "dedupe": {"fill": "null_value"},
    "mix": {"share": "fraction"},
    "shuffle": {"in_order": "keep_block_order"},
    "tensors": {"fill": "null_value", "max_len": "max_list_length"},
}


def check_form(state: Any) -> None:
    """Checks that an object is a state.

    Raises:
        TypeError: It is something else, such as a whole checkpoint with a state in it.
        CheckpointMismatchError: Its version is unknown.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"the state is of type {type(state).__name__}, expected the dict that state_dict() returned")
    if "version" not in state or "request" not in state:
        found = ", ".join(repr(key) for key in list(state)[:8])
        raise TypeError(f"the state has the keys {found}, expected the dict that state_dict() returned, which may be one of their values")
    if state["version"] != STATE_VERSION:
        raise CheckpointMismatchError(f"the state has version {state['version']}, expected {STATE_VERSION}")


def check_dataset(state: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Checks that a state is of the dataset of a request, before a server is asked for the snapshot of the state.

    Raises:
        CheckpointMismatchError: It is of another one.
    """
    saved = state["request"].get("dataset")
    if saved != given["dataset"]:
        raise CheckpointMismatchError(f"the state was saved with dataset {saved!r}, but dataset is {given['dataset']!r}")


def merged(state: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request of a dataset that continues at a state: its own fields, and those of the state that it lacks.

    Args:
        state: A state.
        given: Request of the dataset that loads it.

    Raises:
        CheckpointMismatchError: Both name different snapshots.
    """
    saved, snapshot = with_current_names(state["request"]), state["snapshot"]
    if given.get("snapshot", snapshot) != snapshot:
        raise CheckpointMismatchError(f"the state was saved with snapshot {snapshot}, but snapshot is {given['snapshot']}")
    if "semantics" not in saved and _has_expressions(saved):
        saved["semantics"] = FIRST_SEMANTICS
    if "filter" in given or "mix" in given:
        # The sets of values of the state belong to its filters.
        saved.pop("values", None)
    left_out = {*PER_RUN, *(PROJECTION if any(name in given for name in PROJECTION) else ())}
    request = {**{name: saved[name] for name in saved if name not in left_out}, **given, "snapshot": snapshot}
    if not _has_expressions(saved, of_rows_only=any(name in given for name in PROJECTION)):
        # The expressions are those of the dataset that loads the state.
        request.pop("semantics", None)
    given_mix, saved_mix = ([mixed["dataset"] for mixed in request.get("mix", ())] for request in (given, saved))
    if given_mix and given_mix == saved_mix:
        pairs = zip(given["mix"], saved["mix"])
        request["mix"] = [{**mixed, "snapshot": mixed.get("snapshot", then["snapshot"])} for mixed, then in pairs]
    return request


def check(state: Mapping[str, Any], resolved: Mapping[str, Any], plan_hash: str) -> None:
    """Checks that a plan has the same rows in the same order as a state. Its columns may be others.

    Args:
        state: The state.
        resolved: Request of the plan with all defaults resolved.
        plan_hash: Hash of the plan.

    Raises:
        CheckpointMismatchError: It has not. The message names the first field that differs.
    """
    saved = with_current_names(state["request"])
    if plan_hash == state["plan_hash"] and saved.get("filter") == resolved.get("filter"):
        return
    for name in ORDER:
        if saved.get(name) != resolved.get(name):
            raise CheckpointMismatchError(
                f"the state was saved with {name} {saved.get(name)!r}, but {name} is {resolved.get(name)!r}"
            )
    raise CheckpointMismatchError(f"the state was saved with plan {state['plan_hash']}, but the plan is {plan_hash}")


def with_current_names(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request of a state with the current names of all fields."""
    return {_RENAMED.get(name, name): _renamed(_RENAMED_WITHIN.get(name, {}), value) for name, value in request.items()}


def _has_expressions(request: Mapping[str, Any], of_rows_only: bool = False) -> bool:
    """Returns whether a request has a filter, or selects anything but stored columns.

    Args:
        request: The request.
        of_rows_only: Whether only expressions count that determine the rows, not those of the columns.
    """
    filters = [request.get("filter"), *(mixed.get("filter") for mixed in request.get("mix", ()))]
    selected = () if of_rows_only and not request.get("group_by") else request.get("select", ())
    return any(filters) or any(not text.strip().replace("_", "a").isalnum() for text in selected)


def _renamed(names: Mapping[str, str], value: Any) -> Any:
    if not names:
        return value
    if isinstance(value, Mapping):
        return {names.get(name, name): inner for name, inner in value.items()}
    return [_renamed(names, inner) for inner in value]
