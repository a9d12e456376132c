"""The state of a training dataset, as `TrainingDataset.state_dict` returns it."""

from __future__ import annotations

import numbers
import re
from typing import Any, Callable, Mapping, NoReturn, Sequence

from forebay.arguments import MAX_NUMBER
from forebay.errors import CheckpointMismatchError, SnapshotUnavailableError

STATE_VERSION = 1

# Request fields that a state does not set in the dataset that loads it. The global batch has to be the same.
PER_RUN = ("rank", "world_size", "batch_size", "lanes", "job_name", "label_column", "content_hash")
# Request fields that select columns. If the dataset that loads a state has one of them, those of the state are not used.
PROJECTION = ("columns", "tensors", "select", "dedupe")
# Request fields that determine which rows a batch has.
ORDER = ("dataset", "filter", "values", "seed", "shuffle", "group_by", "max_pack_rows", "mix", "remainder", "plan_version", "semantics")
# Fields that a request must have itself if the state has them. Without them, the request selects other rows.
REQUIRED = ("filter", "group_by", "max_pack_rows", "mix", "values")
# Version of the semantics of SQL expressions of the states that do not name one.
FIRST_SEMANTICS = "3"
# Part of the server's message for a file of a snapshot that has changed, and its hint for new trainings, which not all of these messages have.
HAS_CHANGED, TAKES_A_NEW_ONE = "has changed since the snapshot", "`refresh` takes a new one"
# What to do about an error of the snapshot of a training.
NO_SNAPSHOT = (
    "snapshots are in the state of the server that took them: use a server with the same state, or forebay.open with the same `state=`, "
    "which hosts can share, or the earlier cache folder; or start the training without the checkpoint"
)
CHANGED = (
    "a training does not continue with a new snapshot: restore the files with their sizes and modification times, or start the "
    "training again without the checkpoint"
)
CHANGED_OF_OPEN = (
    "call forebay.open again, and start the training again with the dataset that it returns, without a checkpoint; to continue the "
    "training, restore the files with their sizes and modification times"
)
REMEDIES = (NO_SNAPSHOT, CHANGED, CHANGED_OF_OPEN)
# Request fields that hold a place in the job. A state has its own fields for it.
CURSOR = ("epoch", "epochs", "start_step", "steps", "lane")

# Value of the field `shuffle` for windows of any size.
ANY_WINDOWS: Mapping[str, Any] = {}

# End of the name of a dataset that `forebay.open` opened with credentials: a hash of these.
OF_CREDENTIALS = re.compile("-k[0-9a-f]{16}$")
# Forms of the request fields of a state.
FORMS = {
    "a string": ("dataset", "snapshot", "filter", "remainder"),
    "a list of strings": ("columns", "select", "group_by"),
    "a dict": ("shuffle",),
    "a list of dicts": ("tensors", "dedupe", "mix", "values"),
}
# Fields of a state besides its version and its request.
FIELDS = ("snapshot", "plan_hash", "global_batch", "epoch", "step")

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
        CheckpointMismatchError: Its version is unknown, a field is missing, or its position is invalid.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"the state is of type {type(state).__name__}, expected the dict that state_dict() returned")
    if "version" not in state or "request" not in state:
        found = "the keys " + ", ".join(repr(key) for key in list(state)[:8]) if state else "no keys"
        raise TypeError(f"the state has {found}, expected the dict that state_dict() returned, which may be one of their values")
    if state["version"] != STATE_VERSION:
        raise CheckpointMismatchError(f"the state has version {state['version']!r}, expected {STATE_VERSION}")
    if not isinstance(state["request"], Mapping):
        raise CheckpointMismatchError(f"request of the state is {state['request']!r}, expected a dict")
    for name in FIELDS:
        if name not in state:
            raise CheckpointMismatchError(f"the state has no {name}, expected the dict that state_dict() returned")
    for name in ("global_batch", "epoch", "step"):
        if not _is_count(state[name]):
            raise CheckpointMismatchError(f"{name} of the state is {state[name]!r}, expected a whole number of at least 0 and below 2**64")
    for name in ("snapshot", "plan_hash"):
        if not isinstance(state[name], str):
            raise CheckpointMismatchError(f"{name} of the state is {state[name]!r}, expected a string")
    _check_request(state["request"])


def _check_request(request: Mapping[str, Any]) -> None:
    """Checks the forms of those fields of the request of a state that are read here.

    Raises:
        CheckpointMismatchError: A field has another form, as in a state that was edited.
    """
    forms: dict[str, Callable[[Any], bool]] = {
        "a string": lambda value: isinstance(value, str),
        "a list of strings": lambda value: _is_list_of(str, value),
        "a dict": lambda value: isinstance(value, Mapping),
        "a list of dicts": lambda value: _is_list_of(Mapping, value),
    }
    for expected, names in FORMS.items():
        for name in names:
            if name in request and not forms[expected](request[name]):
                raise CheckpointMismatchError(f"{name} in the request of the state is {request[name]!r}, expected {expected}")
    for mixed in request.get("mix", ()):
        if not all(isinstance(mixed.get(name), str) for name in ("dataset", "snapshot")):
            raise CheckpointMismatchError(f"mix in the request of the state has {dict(mixed)!r}, expected strings as dataset and snapshot")


def check_step(state: Mapping[str, Any], steps: int) -> None:
    """Checks that the position of a state is within an epoch of `steps` steps.

    Raises:
        CheckpointMismatchError: It is behind its end.
    """
    if state["step"] > steps:
        raise CheckpointMismatchError(
            f"step of the state is {state['step']}, but an epoch has {steps} steps; expected an epoch, and a step within this epoch"
        )


def with_names_of(state: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state with the names that its datasets have in a request, and with the current names of all fields.

    `forebay.open` gives a dataset another name if it is opened with other credentials. The files may be the same.
    """
    names = {given["dataset"], *(mixed.get("dataset") for mixed in given.get("mix", ()))}
    current = {OF_CREDENTIALS.sub("", name): name for name in names if isinstance(name, str)}

    def renamed(name: Any) -> Any:
        return name if name in names or not isinstance(name, str) else current.get(OF_CREDENTIALS.sub("", name), name)

    request = with_current_names(state["request"])
    request["dataset"] = renamed(request.get("dataset"))
    if "mix" in request:
        request["mix"] = [{**mixed, "dataset": renamed(mixed.get("dataset"))} for mixed in request["mix"]]
    return {**state, "request": request}


def check_dataset(state: Mapping[str, Any], given: Mapping[str, Any], url: str | None = None) -> None:
    """Checks that a state and a request have the same datasets, before a server is asked for the snapshots of the state.

    Args:
        state: The state.
        given: The request.
        url: Path or URL of the dataset of the request, if it is known.

    Raises:
        CheckpointMismatchError: The state is of another dataset, or of a mixture of others.
    """
    saved = state["request"].get("dataset")
    if saved == given["dataset"]:
        _check_mixture(state["request"], given, is_of_open=url is not None)
        return
    then, hint = state.get("url"), ""
    if then is not None and url is not None:
        hint = f"; open the dataset as {then}: another path is another dataset, even if it leads to the same files"
    of_then, of_now = (f" of {place}" if place is not None else "" for place in (then, url))
    raise CheckpointMismatchError(f"the state was saved with dataset {saved!r}{of_then}, but dataset is {given['dataset']!r}{of_now}{hint}")


def _check_mixture(saved: Mapping[str, Any], given: Mapping[str, Any], is_of_open: bool) -> None:
    """Checks that a state and a request mix the same datasets. Does nothing if the request has no mixture: `merged` checks that case.

    Equal plans do not show this: a snapshot identifies files by their names, sizes and modification times.

    Raises:
        CheckpointMismatchError: The mixed datasets differ.
    """
    then, now = ([mixed.get("dataset") for mixed in request.get("mix") or ()] for request in (saved, given))
    if not now or then == now:
        return
    shown = ", ".join(map(repr, now))
    if not then:
        message = f"the state was saved without mix, but this training has mix {shown}; leave it out"
    elif sorted(then) == sorted(now):
        raise CheckpointMismatchError(
            f"the state was saved with mix {', '.join(map(repr, then))}, but mix is {shown}, in another order; pass the datasets of mix in the "
            "order of the state"
        )
    else:
        message = f"the state was saved with mix {', '.join(map(repr, then))}, but mix is {shown}; pass the same mix to train"
    other = "; another path is another dataset, even if it leads to the same files" if then and is_of_open else ""
    raise CheckpointMismatchError(f"{message}, or start the training without the state{other}")


def merged(state: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request of a dataset that continues at a state: its own fields, and those of the state that it lacks.

    Args:
        state: A state.
        given: Request of the dataset that loads it.

    Raises:
        CheckpointMismatchError: The state and the request name different snapshots, only the state has a field of `REQUIRED`, or the
            request shuffles by windows and the state does not.
    """
    saved, snapshot = dict(state["request"]), state["snapshot"]
    for name in REQUIRED:
        # Values belong to filters. If the filters differ, too, `check` raises the error about the filters.
        if saved.get(name) and not given.get(name) and (name != "values" or _filters(saved) == _filters(given)):
            raise CheckpointMismatchError(
                f"the state was saved with {name} {_shown(saved[name])}, but this training has no {name}; pass the same {name} to train, "
                "or start the training without the state"
            )
    given = _with_windows_of(saved, given)
    if given.get("snapshot", snapshot) != snapshot:
        raise CheckpointMismatchError(f"the state was saved with snapshot {snapshot}, but snapshot is {given['snapshot']}")
    if "semantics" not in saved and _has_expressions(saved):
        saved["semantics"] = FIRST_SEMANTICS
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
        CheckpointMismatchError: The plan has other rows or another order. The message names the first field that differs.
    """
    saved = state["request"]
    if plan_hash == state["plan_hash"] and _datasets(saved) == _datasets(resolved) and _filters(saved) == _filters(resolved):
        return
    for name in ORDER:
        if saved.get(name) != resolved.get(name):
            if name == "values":
                raise CheckpointMismatchError(_of_values(saved.get(name) or [], resolved.get(name) or []))
            raise CheckpointMismatchError(
                f"the state was saved with {name} {saved.get(name)!r}, but {name} is {resolved.get(name)!r}"
            )
    raise CheckpointMismatchError(f"the state was saved with plan {state['plan_hash']}, but the plan is {plan_hash}")


def _with_windows_of(saved: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a request with what its shuffle leaves open as in a state: the size of windows of any size (`shuffle=True`), and the partitions.

    Raises:
        CheckpointMismatchError: The request has windows of any size, and the state has no windows.
    """
    mode, then = given.get("shuffle"), saved.get("shuffle", {})
    if mode is None:
        return given
    if not mode.keys() - {"partitions"}:
        if "none" in then or "global" in then:
            shown = f"partitions is {mode['partitions']}" if mode else "shuffle is True"
            raise CheckpointMismatchError(
                f"the state was saved with shuffle {then!r}, but {shown}, which has windows; pass the same shuffle to train, leave it "
                "out for that of the state, or start the training without the state"
            )
        mode = {**({"window_rows": then["window_rows"]} if "window_rows" in then else ANY_WINDOWS), **mode}
    is_same_mode = all((name in mode) == (name in then) for name in ("none", "global"))
    if "partitions" in then and is_same_mode:
        mode = {"partitions": then["partitions"], **mode}
    return {**given, "shuffle": mode}


def raise_with_remedy(error: SnapshotUnavailableError, is_of_open: bool) -> NoReturn:
    """Raises an error about the snapshot of a training, with a message that says how to continue. An error that has the remedy is raised again.

    Args:
        error: The error.
        is_of_open: True for a dataset of `forebay.open`, which its users do not refresh.
    """
    message = str(error)
    if message.endswith(REMEDIES):
        raise error
    if "has no snapshot" in message:
        remedy = NO_SNAPSHOT
    elif HAS_CHANGED in message and is_of_open:
        message, remedy = message.replace(TAKES_A_NEW_ONE, "forebay.open takes a new one"), CHANGED_OF_OPEN
    elif HAS_CHANGED in message:
        message += "" if TAKES_A_NEW_ONE in message else "; `refresh` takes a new snapshot"
        remedy = CHANGED
    else:
        raise error
    raise SnapshotUnavailableError(f"{message}; {remedy}") from error


def with_current_names(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the request of a state with the current names of all fields."""
    return {_RENAMED.get(name, name): _renamed(_RENAMED_WITHIN.get(name, {}), value) for name, value in request.items()}


def _datasets(request: Mapping[str, Any]) -> list[Any]:
    return [part.get("dataset") for part in (request, *request.get("mix", ()))]


def _of_values(saved: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]]) -> str:
    """Returns the message for a state with other sets of values. The hashes of the sets say nothing to a reader."""
    now = {each.get("name"): each for each in given}
    parts = []
    for then in saved:
        name, other = then.get("name"), now.get(then.get("name"), {})
        if then != other:
            counts = "" if then.get("count") == other.get("count") else f" ({then.get('count')} then, {other.get('count', 0)} now)"
            parts.append(f"{name!r}{counts}")
    # Sets that only the request has are those of another filter.
    return f"the state was saved with other values of {', '.join(parts) or 'its filters'}; pass the same values to train"


def _filters(request: Mapping[str, Any]) -> list[str]:
    return [part.get("filter") or "" for part in (request, *request.get("mix", ()))]


def _shown(value: Any) -> str:
    """Returns a value of a request as a text for a message: the names of sets of values, or the datasets of a mixture."""
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        return ", ".join(repr(part.get("name", part.get("dataset"))) for part in value)
    return repr(value)


def _is_count(value: Any) -> bool:
    # A number of NumPy is an Integral.
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and 0 <= int(value) <= MAX_NUMBER


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, kind) for each in value)


def _has_expressions(request: Mapping[str, Any], of_rows_only: bool = False) -> bool:
    """Returns whether a request has a filter, or selects anything but stored columns.

    Args:
        request: The request.
        of_rows_only: Whether only expressions count that determine the rows, not those of the columns.
    """
    selected = () if of_rows_only and not request.get("group_by") else request.get("select", ())
    return any(_filters(request)) or any(not text.strip().replace("_", "a").isalnum() for text in selected)


def _renamed(names: Mapping[str, str], value: Any) -> Any:
    if not names:
        return value
    if isinstance(value, Mapping):
        return {names.get(name, name): inner for name, inner in value.items()}
    return [_renamed(names, inner) for inner in value]
