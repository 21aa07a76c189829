"""Dask workers, each with a cache of its own: what affinity saves at the object store.

    python dask_affinity.py [--workers 4] [--json]

needs `octavo[fsspec]`, s3fs, dask[distributed] and moto[server]. Workers are processes of this
machine, and the store is moto behind a counter, so the figures are requests and bytes, not times.

A task goes to its file's owner by `submit(.., workers=[owner])`. With `allow_other_workers=False`
it waits if its owner is gone, so a program submits with the workers that are there. With True it
runs elsewhere, but then idle workers also steal tasks, and cache files that are not theirs.
"""

import time

import demonstration
from dask.distributed import Client, LocalCluster



def name_of(dask_worker):
    """Return the name of a worker. Dask fills in the argument."""
    return str(dask_worker.name)


class Workers:
    """A cluster of processes on this machine, while the context lasts."""

    # Where no worker is named, the scheduler chooses.
    routings = ("free", "random", "affinity")

    def __init__(self, count, options):
        self._options = options
        # Tasks return one number, so no worker needs memory for results.
        self._cluster = LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            memory_limit=0,
        )
        self._client = Client(self._cluster)
        self._client.wait_for_workers(count)
        self._find()

    def _find(self):
        # Names outlive restarts. Addresses have ports of this run, so they must not be hashed.
        named = self._client.run(name_of)
        self._addresses = {name: address for address, name in named.items()}

    @property
    def names(self):
        return sorted(self._addresses)

    def run(self, pairs):
        """Read each file on its worker, or on any if that is None."""
        tasks = [
            self._client.submit(
                demonstration.read,
                self._options,
                file,
                workers=[self._addresses[worker]] if worker else None,
                allow_other_workers=False,
                # Dask must not answer with the result of the last pass.
                pure=False,
            )
            for file, worker in pairs
        ]
        return self._client.gather(tasks)

    def residents(self):
        return self._client.run(demonstration.resident, self._options).values()

    def lose_one(self):
        """End a worker of Dask's choice, and wait until it is gone."""
        count = len(self.names) - 1
        self._cluster.scale(count)
        while len(self._client.run(name_of)) != count:
            time.sleep(0.05)
        self._find()

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self._client.close()
        self._cluster.close()


if __name__ == "__main__":
    demonstration.main(__doc__.splitlines()[0], Workers)
