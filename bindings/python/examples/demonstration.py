"""What the examples of Dask and Ray share: files at a counting S3 server, what a worker does, and
the table of what came of it. Nothing here knows Dask or Ray."""

import argparse
import json
import random
import zlib

import fsspec
from counting_s3 import CountingS3

import octavo
from octavo.affinity import assign

BUCKET = "data"


def arguments(about):
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--files", type=int, default=256)
    parser.add_argument("--file-bytes", type=octavo.bytes_of, default="512KiB")
    parser.add_argument("--warm", type=int, default=3, help="passes over all files after the first")
    parser.add_argument(
        "--room", type=float, default=1.2, help="of the small caches, in shares of a worker's data"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    return parser.parse_args()


class Files:
    """Files of random bytes at a server, and their checksums."""

    def __init__(self, server, args):
        client = server.client()
        client.create_bucket(Bucket=BUCKET)
        self.server = server
        self.bytes = args.files * args.file_bytes
        self.checksums = {}
        for number in range(args.files):
            data = random.Random(number).randbytes(args.file_bytes)
            client.put_object(Bucket=BUCKET, Key=f"part-{number:05}", Body=data)
            self.checksums[f"{BUCKET}/part-{number:05}"] = zlib.crc32(data)

    def options(self, memory_max_bytes):
        """Options of the chained URLs."""
        return {"octavo": {"memory_max": memory_max_bytes}, "s3": self.server.options()}


def read(options, file):
    """Read a file through the cache of this process. Runs on a worker."""
    with fsspec.open(f"octavo::s3://{file}", "rb", **options) as opened:
        return zlib.crc32(opened.read())


def resident(options):
    """Return how many bytes of files this process caches. Runs on a worker."""
    fs, _ = fsspec.url_to_fs(f"octavo::s3://{BUCKET}", **options)
    return sum(partition["resident_bytes"] for partition in fs.cache_stat()["partitions"])


def passes(files, args, workers, routing):
    """Read all files `1 + args.warm` times, each time in another order, and return a row.

    `routing` is "random", "affinity", or "free": then the scheduler chooses the workers.
    """
    order = random.Random(1)
    owners = assign(files.checksums, workers.names)
    counts = []
    for _ in range(1 + args.warm):
        names = order.sample(sorted(files.checksums), len(files.checksums))
        place = {
            "affinity": owners.get,
            "random": lambda _name: order.choice(workers.names),
            "free": lambda _name: None,
        }[routing]
        files.server.counts()
        # A pair is a file and its worker.
        found = workers.run([(name, place(name)) for name in names])
        counts.append(files.server.counts())
        assert found == [files.checksums[name] for name in names], "wrong bytes"
    cached = sum(workers.residents())
    warm = counts[1:]
    return {
        "routing": routing,
        "workers": len(workers.names),
        "cold_gets": counts[0]["gets"],
        "cold_bytes": counts[0]["bytes"],
        "warm_gets": [one["gets"] for one in warm],
        "warm_bytes": [one["bytes"] for one in warm],
        # Of the bytes that tasks read in the last pass.
        "hit_ratio": 1 - counts[-1]["bytes"] / files.bytes,
        "cached_bytes": cached,
        "distinct_bytes": files.bytes,
        "cached_per_distinct": cached / files.bytes,
    }


def ample(files):
    """A cache that has room for all files, with its own needs."""
    return 2 * files.bytes + (64 << 20)


def rows(files, args, start):
    """Return the rows of all routings and sizes. `start(count, options)` starts workers."""
    made = []
    small = int(args.room * files.bytes / args.workers)
    plans = [("ample", args.workers, ample(files), start.routings)]
    plans.append(("small", args.workers, small, start.routings))
    # As much memory as all small caches together have.
    plans.append(("one big", 1, small * args.workers, ["affinity"]))
    for cache, count, memory_max_bytes, routings in plans:
        for routing in routings:
            with start(count, files.options(memory_max_bytes)) as workers:
                row = passes(files, args, workers, routing)
            made.append({"cache": cache, "memory_max_bytes": memory_max_bytes, **row})
    return made


def leave(files, args, start):
    """Read all files, end a worker, read them again, and count what the others had to fetch."""
    if args.workers < 2:
        return {}
    with start(args.workers, files.options(ample(files))) as workers:
        before = assign(files.checksums, workers.names)
        workers.run(list(before.items()))
        workers.lose_one()
        after = assign(files.checksums, workers.names)
        files.server.counts()
        workers.run(list(after.items()))
        counts = files.server.counts()
    moved = [name for name in before if before[name] != after[name]]
    return {
        "a worker left": {
            "files_moved": len(moved),
            "moved_per_share": len(moved) * args.workers / len(before),
            "gets": counts["gets"],
            "bytes_per_moved_byte": counts["bytes"] / (len(moved) * args.file_bytes),
        }
    }


def report(args, files, made, extra):
    if args.json:
        print(json.dumps({"settings": vars(args), "rows": made, **extra}, indent=1))
        return
    mib = lambda count: f"{count / (1 << 20):.1f}"
    head = "cache,workers,routing,cold GETs,cold MiB,warm GETs,warm MiB,hit ratio,cached/distinct"
    lines = [head.split(",")]
    for row in made:
        lines.append(
            [row["cache"], str(row["workers"]), row["routing"], str(row["cold_gets"])]
            + [mib(row["cold_bytes"]), " ".join(map(str, row["warm_gets"]))]
            + [" ".join(map(mib, row["warm_bytes"])), f"{row['hit_ratio']:.3f}"]
            + [f"{row['cached_per_distinct']:.3f}"]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(f"{args.files} files, {mib(files.bytes)} MiB")
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    for name, value in extra.items():
        print(f"{name}: {value}")


def main(about, start):
    """Run everything. `start` is a class of workers, which has `routings`, `names`, `run(pairs)`,
    `residents()` and `lose_one()`, and is a context."""
    args = arguments(about)
    with CountingS3() as server:
        files = Files(server, args)
        made = rows(files, args, start)
        extra = leave(files, args, start)
        report(args, files, made, extra)
