"""The engine of a Ray cluster: every search is a task with one GPU, on any node that has the model.

Ray schedules and tells what it lost; which searches are begun again is decided in `dealing`, as for every engine.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sparsegen import __version__
from sparsegen.errors import ConfigError, DeviceUnavailableError, MachineError, SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.tuning.engines.engine import Assignment, End, Found, SetUp
from sparsegen.tuning.engines.ray_worker import LEASE_SECONDS, Began, Board, describe, run_search
from sparsegen.tuning.engines.worker import Failure, Logged, end_of
from sparsegen.tuning.report import Status
from sparsegen.tuning_db.location import Location

log = logging.getLogger(__name__)

# Beginnings of the resources that name a node's model.
OWN_LABEL, RAYS_LABEL = "sparsegen:", "accelerator_type:"
LITTLE = 0.001  # amount of a label: it says where a task may run, and is no limit
DESCRIBE_SECONDS = 120.0  # time for some GPU of a label to answer
LOOK_SECONDS = 0.25  # between looks at the board, and at the cluster's nodes
MARGIN_SECONDS = 2.0  # time for a search that was cut off to end
SILENT_SECONDS = 180.0  # limit of silence for a search that has begun


class RayEngine:
    """The GPUs of a Ray cluster.

    Nodes need the same sparsegen, and a way to the database. A node's model is named by its resource
    ``accelerator_type:...``, which Ray finds out, or by one that begins with ``sparsegen:``, which its owner gives it.
    Nodes may come and go while searches run.

    Args:
        address: address for `ray.init`; by default ``RAY_ADDRESS``, else a cluster that this host is part of.
        models: keys of devices to search on; by default all that the cluster has.

    Raises:
        DeviceUnavailableError: there is no cluster, it has no GPU, or none of a model.
        ConfigError: a node has another sparsegen, or several hosts would each write a SQLite file of their own.
        MachineError: no GPU had time to say what it is.
    """

    patience = 120.0

    def __init__(
        self, set_up: SetUp, *, address: str | None = None, models: Sequence[str] | None = None
    ) -> None:
        self._set_up = set_up
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            try:
                ray.init(address or "auto", log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError) as error:
                raise DeviceUnavailableError(
                    f"no Ray cluster is there ({error}): start one with `ray start --head`, or name one with --address"
                ) from error
        try:
            self._nodes, self._nodes_seen = _gpu_nodes(), time.monotonic()
            self._labels: dict[str, list[str]] = {}  # labels of each model's key
            self.models = self._described(models)
            self._require_shared(Location.parse(set_up.place))
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            self._board = ray.remote(Board).options(num_cpus=0, scheduling_strategy=here).remote()
        except BaseException:
            self._disconnect()
            raise
        self._searches: list[RaySearch] = []
        self._inbox: dict[int, list[Any]] = defaultdict(list)
        self._done: set[int] = set()
        self._looked = -math.inf
        self._begun = 0

    def _described(self, keys: Sequence[str] | None) -> tuple[Device, ...]:
        """A device of each model, as one node of each label describes it."""
        labels = list(dict.fromkeys(label for label, _ in self._nodes))
        if not labels:
            raise DeviceUnavailableError(
                "no node of the Ray cluster has a GPU of a known model; GPUs are found by Ray itself, and a node of "
                "emulators is started with --num-gpus 1 --resources '{\"sparsegen:emulator\": 1}'"
            )
        asked = {
            label: ray.remote(describe)
            .options(num_cpus=0, num_gpus=0.01, resources={label: LITTLE}, max_retries=3)
            .remote(label)
            for label in labels
        }
        found: dict[str, Device] = {}
        for label, answer in asked.items():
            try:
                node = ray.get(answer, timeout=DESCRIBE_SECONDS)
            except ray.exceptions.GetTimeoutError:
                raise MachineError(
                    f"no GPU of {label} had time for {DESCRIBE_SECONDS:g} s; others use the cluster, try again later"
                ) from None
            except ray.exceptions.RayTaskError as error:
                raise DeviceUnavailableError(f"a node of {label} cannot search: {error.cause}") from error
            if node.version != __version__:
                raise ConfigError(
                    f"a node of {label} has sparsegen {node.version}, and this is {__version__}: install the same"
                )
            found.setdefault(node.device.key, node.device)
            self._labels.setdefault(node.device.key, []).append(label)
        missing = [key for key in keys or () if key not in found]
        if missing:
            raise DeviceUnavailableError(f"the cluster has no {missing[0]!r}; it has {', '.join(found)}")
        return tuple(device for key, device in found.items() if keys is None or key in keys)

    def _require_shared(self, location: Location) -> None:
        hosts = {node["NodeManagerHostname"] for _, node in self._nodes} - {socket.gethostname()}
        if location.path is not None and hosts:
            raise ConfigError(
                f"{location} is a file of this host, and {', '.join(sorted(hosts))} would write another: name a "
                "server's database, --db postgresql://USER@HOST/NAME"
            )

    def capacity(self, model: Device) -> int:
        """See `Engine.capacity`: the GPUs of the nodes that are alive."""
        return sum(map(self.gpus, self._labels[model.key]))

    def gpus(self, label: str) -> int:
        """The GPUs of a label, on nodes that are alive."""
        return sum(self._gpus_of_nodes(label))

    def _gpus_of_nodes(self, label: str) -> list[int]:
        if time.monotonic() - self._nodes_seen > LOOK_SECONDS:
            self._nodes, self._nodes_seen = _gpu_nodes(), time.monotonic()
        return [int(node["Resources"]["GPU"]) for found, node in self._nodes if found == label]

    def begin(self, model: Device, assignment: Assignment) -> RaySearch:
        """See `Engine.begin`."""
        labels = self._labels[model.key]
        label = max(labels, key=lambda one: self.gpus(one) - sum(s.label == one for s in self._searches))
        beside = max(self._gpus_of_nodes(label), default=1)
        shared = replace(assignment, searches=min(beside, assignment.searches or beside))
        level = logging.getLogger("sparsegen").getEffectiveLevel()
        self._begun += 1
        task = (
            ray.remote(run_search)
            .options(num_cpus=0, num_gpus=1, resources={label: LITTLE}, max_retries=0)
            .remote(self._set_up, ray.put(shared), label, self._board, self._begun, level)
        )
        self._searches.append(RaySearch(self, self._begun, task, label))
        return self._searches[-1]

    def look(self) -> None:
        """See which tasks are done, and take what hangs on the board, unless that was done just now.

        Raises:
            MachineError: the connection to the cluster is lost.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        by_task = {search.task: search.number for search in self._searches}
        done, _ = ray.wait(list(by_task), num_returns=len(by_task), timeout=0)
        self._done = {by_task[task] for task in done}
        try:  # after that, so that what a task said last is there
            said = ray.get(self._board.take.remote())
        except ray.exceptions.RayError as error:
            raise MachineError(
                f"the Ray cluster is lost: {error}; what was measured is recorded, and the same command goes on"
            ) from error
        for number, message in said:
            self._inbox[number].append(message)

    def taken(self, number: int) -> tuple[list[Any], bool]:
        """Returns a search's messages up to the last look, and whether its task was done then."""
        return self._inbox.pop(number, []), number in self._done

    def give_up(self, number: int) -> None:
        """A search that is lost to the cluster ends by itself, should its process be alive."""
        self._board.give_up.remote(number)

    def ended(self, search: RaySearch) -> None:
        """Forgets a search, which takes no GPU any more."""
        self._searches.remove(search)

    def stop(self) -> None:
        """Ask all searches to end soon."""
        self._board.stop.remote()

    def close(self) -> None:
        """See `Engine.close`."""
        for search in list(self._searches):
            search.kill()
        ray.kill(self._board)
        self._disconnect()

    def _disconnect(self) -> None:
        if self._is_ours and ray.is_initialized():
            ray.shutdown()


class RaySearch:
    """A search that is a task of Ray's; see `Running`.

    Attributes:
        number: its own, in this engine.
        task: Ray's handle of it.
        label: the resource that it asked for.
        where: host and device; empty until the task has begun.
    """

    def __init__(self, engine: RayEngine, number: int, task: object, label: str) -> None:
        self._engine, self.number, self.task, self.label = engine, number, task, label
        self.where = ""
        self._heard = time.monotonic()
        self._had_node = time.monotonic()
        self._has_ended = self._is_withdrawn = False
        self._lost: tuple[float, End] | None = None  # when it is certain that nothing goes on

    def news(self) -> Sequence[Status | End]:
        """See `Running.news`."""
        if self._has_ended:
            return ()
        if self._is_withdrawn:
            self.kill()
            return [End(Found(was_interrupted=True))]
        self._engine.look()
        if self._lost is not None:
            certain, end = self._lost
            if time.monotonic() < certain:
                return ()
            self._finish()
            return [end]
        heard: list[Status | End] = []
        messages, is_done = self._engine.taken(self.number)
        for message in messages:
            self._heard = time.monotonic()
            if isinstance(message, Began):
                self.where = message.where
            elif isinstance(message, Logged):
                logging.getLogger(message.logger).log(message.level, "%s: %s", self.where, message.text)
            elif isinstance(message, Status):
                heard.append(message)
        if is_done:
            end = self._end()
            if self._lost is None:
                self._finish()
                heard.append(end)
        elif why := self._given_up():
            self.kill()
            heard.append(End(error=MachineError(why), was_lost=True))
        return heard

    def _given_up(self) -> str:
        """Returns why nothing more is expected of it; empty otherwise."""
        now = time.monotonic()
        if self.where:
            is_silent = now - self._heard > SILENT_SECONDS
            return f"{self.where} has said nothing for {SILENT_SECONDS:g} s" if is_silent else ""
        if self._engine.gpus(self.label):
            self._had_node = now
        is_waiting = now - self._had_node > self._engine.patience
        return (
            f"the cluster has had no GPU of {self.label} for {self._engine.patience:g} s"
            if is_waiting
            else ""
        )

    def _end(self) -> End:
        """Returns its end. A node that is dead to Ray may only be cut off: its search gets a moment to end by itself,
        so that no other one measures the same at the same time.
        """
        try:
            came_to = ray.get(self.task)
        except ray.exceptions.RayTaskError as error:
            return End(error=SparsegenError(f"a search on {self.where or self.label} failed: {error}"))
        except ray.exceptions.RayError as error:
            lost = MachineError(
                f"{self.where or self.label}: {type(error).__name__}: {str(error).splitlines()[0]}"
            )
            end = End(error=lost, was_lost=True)
            if not isinstance(error, ray.exceptions.WorkerCrashedError):
                self._engine.give_up(self.number)
                self._lost = time.monotonic() + LEASE_SECONDS + MARGIN_SECONDS, end
            return end
        return end_of(came_to) if isinstance(came_to, Failure) else End(came_to)

    def _finish(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._engine.ended(self)

    def stop(self) -> None:
        """See `Running.stop`."""
        self._is_withdrawn = not self.where
        self._engine.stop()

    def kill(self) -> None:
        """See `Running.kill`."""
        if not self._has_ended:
            ray.cancel(self.task, force=True)
            self._finish()


def _gpu_nodes() -> list[tuple[str, Any]]:
    """The nodes that are alive and have GPUs, each with the resource that names their model."""
    found = []
    for node in ray.nodes():
        resources = node["Resources"] if node["Alive"] else {}
        labels = [name for name in resources if name.startswith((OWN_LABEL, RAYS_LABEL))]
        if resources.get("GPU", 0) >= 1 and labels:
            found.append((max(labels, key=lambda label: label.startswith(OWN_LABEL)), node))
    return found
