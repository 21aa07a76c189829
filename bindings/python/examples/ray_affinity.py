"""Ray actors, each with a cache of its own: what affinity saves at the object store.

    python ray_affinity.py [--workers 4] [--json]

needs `octavo[fsspec]`, s3fs, ray and moto[server]. Actors are processes of this machine, and the
store is moto behind a counter, so the figures are requests and bytes, not times.

Ray cannot send a task to a process, only to a node, and it starts and ends the processes of tasks
as it likes. So each cache belongs to an actor, and calls go to the actor that owns the file. On
several nodes, pin an actor to each with `NodeAffinitySchedulingStrategy(node_id, soft=False)`.
"""

import demonstration
import ray


@ray.remote
class Reader:
    """The worker process with the cache."""

    def __init__(self, options):
        self._options = options

    def read(self, file):
        return demonstration.read(self._options, file)

    def resident(self):
        return demonstration.resident(self._options)


class Workers:
    """An actor for each name, while the context lasts."""

    routings = ("random", "affinity")

    def __init__(self, count, options):
        self._actors = {f"reader-{number}": Reader.remote(options) for number in range(count)}

    @property
    def names(self):
        return sorted(self._actors)

    def run(self, pairs):
        """Read each file on its worker."""
        return ray.get([self._actors[worker].read.remote(file) for file, worker in pairs])

    def residents(self):
        return ray.get([actor.resident.remote() for actor in self._actors.values()])

    def lose_one(self):
        ray.kill(self._actors.pop(self.names[-1]))

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        for actor in self._actors.values():
            ray.kill(actor)


if __name__ == "__main__":
    ray.init(
        # Logical: the actors take turns on the processors that are there.
        num_cpus=64,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        demonstration.main(__doc__.splitlines()[0], Workers)
    finally:
        ray.shutdown()
