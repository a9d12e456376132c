"""A tier of servers that runs on the nodes of a Ray cluster."""

from __future__ import annotations

import os
from typing import Any, Mapping

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from forebay.errors import ServerStartError
from forebay.ray.server import Coordinator, ServerActor, flags_of
from forebay.shown_url import check_url

# Settings that a tier sets.
FIXED = ("grpc", "http", "advertise", "members", "cache_dir", "dataset", "state", "max_log_size")
# Maximum time for the streams of a server to end after its tier was closed.
STOP_TIMEOUT_S = 120
STRATEGIES = ("STRICT_SPREAD", "SPREAD")


class Tier:
    """Forebay servers that form one cluster, on the nodes of a Ray cluster: one for each bundle of a placement group.

        tier = forebay.ray.Tier(4, {"clicks": "s3://bucket/clicks"}, state="s3://bucket/forebay-state", insecure=True)
        client = forebay.connect(*tier.urls)

    The servers are detached: they continue after the driver has ended, until `close`. Another driver finds them by
    `Tier.existing(name)`. Ray starts a server again that ends, and moves it if its node is lost. Ray places and restarts the
    servers; batches do not pass through the object store.
    """

    def __init__(
        self,
        servers: int,
        datasets: Mapping[str, str],
        *,
        state: str | None = None,
        name: str = "forebay",
        cpus: float = 1,
        resources: Mapping[str, float] | None = None,
        strategy: str = "STRICT_SPREAD",
        cache_dir: str | None = None,
        port: int = 0,
        start_timeout: float = 120,
        **settings: Any,
    ) -> None:
        """Starts the servers. Blocks until all of them accept connections and are members of one cluster.

        Args:
            servers: Number of servers, at least 1.
            datasets: Absolute path or URL of each dataset by name, which all nodes can read.
            state: Absolute path or URL of the state, which all nodes reach. Required with several servers.
            name: Name of the tier, with which `existing` finds it. It must be unique in the Ray cluster.
            cpus: CPUs of each server, which Ray reserves. It is also the number of threads that decode, at least 1, unless
                `cpu_threads` is given.
            resources: Further resources of each server that Ray reserves, such as `memory` in bytes, or a custom one that only
                nodes with a local disk have.
            strategy: `STRICT_SPREAD` puts each server on a node of its own, `SPREAD` puts several on a node if there are too few.
            cache_dir: Absolute path of a folder for the caches on a disk of each node. Default: a folder of this user in the temporary directory.
            port: Port of gRPC on each node. Default: a free one, which a restarted server keeps.
            start_timeout: Time until Ray has the resources, and until each server accepts connections, in seconds.
            **settings: Further settings by the names of the flags of `forebay serve`, such as `tokens="/etc/forebay/tokens.toml"`,
                `tls_certificate=...` and `cache_memory="64GiB"`. Without TLS and tokens `insecure=True` is required.

        Raises:
            ValueError: An argument is invalid, or a tier of this name exists.
            ServerStartError: Ray does not have the resources in time, or a server does not start. Nothing remains.
        """
        if servers < 1:
            raise ValueError(f"servers is {servers}, expected at least 1")
        if not datasets:
            raise ValueError("datasets is empty, expected the path or URL of each dataset by name")
        if servers > 1 and state is None:
            raise ValueError(f"state is None, expected a path or URL that all {servers} servers reach")
        # They are on the command lines of the servers, which others can read.
        for argument, url in (("state", state), *((f"datasets[{key!r}]", url) for key, url in datasets.items())):
            if url is not None:
                check_url(argument, str(url))
                _check_absolute(argument, str(url), ":" in str(url).partition("/")[0])
        if cache_dir is not None:
            _check_absolute("cache_dir", str(cache_dir), None)
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy is {strategy!r}, expected one of {', '.join(STRATEGIES)}")
        if taken := sorted(settings.keys() & set(FIXED)):
            raise ValueError(f"Tier() sets {', '.join(taken)} itself")
        # Another tier of this name would fail below, but it must not be closed then.
        if _find(name, "members") is not None:
            raise ValueError(f"a tier named {name!r} exists: use Tier.existing({name!r}), or close it")
        self.name, self._scheme = name, "grpc+tls" if "tls_certificate" in settings else "grpc"
        # The actors have one namespace for each tier.
        self._namespace = f"forebay-{name}"
        flags = [word for key, url in datasets.items() for word in ("--dataset", f"{key}={url}")]
        flags += flags_of({"cpu_threads": max(1, int(cpus)), **({"state": state} if state else {}), **settings})
        detached = {"namespace": self._namespace, "lifetime": "detached", "max_restarts": -1}
        # If another driver has just created a tier of this name, this raises ValueError, and nothing must be closed.
        ray.remote(Coordinator).options(name="members", num_cpus=0, **detached).remote(servers, self._scheme)
        try:
            self._start(servers, flags, cpus, dict(resources or {}), strategy, cache_dir, port, start_timeout)
        except BaseException:
            self.close()
            raise

    @classmethod
    def existing(cls, name: str = "forebay") -> Tier:
        """Returns a tier that was started by another driver.

        Args:
            name: Name of the tier.

        Raises:
            LookupError: There is no tier of this name.
        """
        coordinator = _find(name, "members")
        if coordinator is None:
            raise LookupError(f"there is no tier named {name!r} in this Ray cluster")
        tier = cls.__new__(cls)
        tier.name, tier._namespace = name, f"forebay-{name}"
        tier._scheme = ray.get(coordinator.scheme.remote())
        return tier

    @property
    def urls(self) -> list[str]:
        """URLs of the servers for `forebay.connect`. They can change when a node is lost."""
        return [f"{self._scheme}://{address}" for address in self._addresses()]

    def close(self) -> None:
        """Stops the servers, and returns their resources to Ray. Running streams can finish within the grace period."""
        actors = [actor for number in range(self._size()) if (actor := self._server(number)) is not None]
        stopping = [actor.stop.remote() for actor in actors]
        for stopped in stopping:
            try:
                ray.get(stopped, timeout=STOP_TIMEOUT_S)
            except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
                # The server has ended with its node, it did not start, or it waits for a node.
                continue
        for actor in actors:
            ray.kill(actor, no_restart=True)
        if (coordinator := _find(self.name, "members")) is not None:
            ray.kill(coordinator, no_restart=True)
        try:
            remove_placement_group(ray.util.get_placement_group(self._namespace))
        except ValueError:
            # The placement group was not created.
            return

    def _start(
        self,
        servers: int,
        flags: list[str],
        cpus: float,
        resources: dict[str, float],
        strategy: str,
        cache_dir: str | None,
        port: int,
        timeout: float,
    ) -> None:
        detached = {"namespace": self._namespace, "lifetime": "detached", "max_restarts": -1}
        bundle = {"CPU": cpus, **resources}
        group = placement_group([bundle] * servers, strategy=strategy, name=self._namespace, lifetime="detached")
        if not group.wait(timeout):
            raise ServerStartError(
                f"Ray did not have {servers} bundles of {bundle} with strategy {strategy} within {timeout:g} s"
            )
        memory = resources.pop("memory", None)
        actors = []
        for number in range(servers):
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
            options = {"num_cpus": cpus, "resources": resources, "memory": memory, "scheduling_strategy": place}
            server = ray.remote(ServerActor).options(name=f"server-{number}", max_concurrency=4, **options, **detached)
            actors.append(server.remote(self._namespace, number, "members", flags, cache_dir, port, timeout))
        try:
            ray.get([actor.update.remote() for actor in actors], timeout=timeout)
            # Each server now also knows those that started after it.
            ray.get([actor.update.remote() for actor in actors], timeout=timeout)
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
            raise ServerStartError(f"a server of the tier does not start: {error}") from error

    def _addresses(self) -> list[str]:
        coordinator = _find(self.name, "members")
        if coordinator is None:
            raise LookupError(f"the tier {self.name!r} is closed")
        return ray.get(coordinator.addresses.remote())

    def _size(self) -> int:
        coordinator = _find(self.name, "members")
        return 0 if coordinator is None else ray.get(coordinator.size.remote())

    def _server(self, number: int) -> Any:
        return _find(self.name, f"server-{number}")


def _check_absolute(argument: str, path: str, is_url: bool | None) -> None:
    """Checks that a path is absolute, because each server runs in a folder of its own.

    Args:
        argument: Name of the argument.
        path: The path or URL.
        is_url: True if it is a URL; None if it must not be one.

    Raises:
        ValueError: It is a relative path.
    """
    if not os.path.isabs(path) and not is_url:
        expected = "an absolute path" if is_url is None else "an absolute path or a URL"
        raise ValueError(f"{argument} is {path!r}, expected {expected}: the servers run in other folders than this process")


def _find(tier: str, actor: str) -> Any:
    """Returns an actor of a tier, or None."""
    try:
        return ray.get_actor(actor, namespace=f"forebay-{tier}")
    except ValueError:
        return None
