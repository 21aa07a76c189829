"""Compares reads through Octavo with the system's own, in turns: `python benchmarks/reads.py`.

Every row is a ratio of speeds in one run: rounds of both contestants alternate, so that a change of
the machine's speed meets both. The median of the rounds' ratios counts; the spread is from the
first to the third quartile. Needs numpy, and for the row of the server OCTAVO_PROGRAM, the path of
the program `octavo` (of a release build, as the package must be).
"""

import argparse
import json
import mmap
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time

import numpy
import octavo

KIB, MIB = 1 << 10, 1 << 20
SIZE = 256 * MIB


def offsets(count, size, unit):
    """Random offsets of whole units in a file."""
    chosen = random.Random(11)
    return [chosen.randrange(size // unit) * unit for _ in range(count)]


def compare(name, goal, rounds, ours, theirs):
    """Time both in turns; each returns the seconds of one round of equal work."""
    ours(), theirs()
    pairs = []
    for number in range(rounds):
        # Who begins alternates, too.
        if number % 2:
            second = theirs()
            pairs.append((ours(), second))
        else:
            pairs.append((ours(), theirs()))
    ratios = [second / first for first, second in pairs]
    return row(name, goal, ratios, octavo_s=pairs[-1][0], other_s=pairs[-1][1])


def row(name, goal, ratios, **more):
    low, median, high = statistics.quantiles(ratios, n=4)
    return {"name": name, "ratio": median, "low": low, "high": high, "goal": goal, **more}


def timed(work, places):
    begin = time.perf_counter()
    work(places)
    return time.perf_counter() - begin


def read_into(path, partition, unit, goal, rounds, count):
    places = offsets(count, SIZE, unit)
    buffer = bytearray(unit)
    descriptor = os.open(path, os.O_RDONLY)
    with partition.open(path, read_only=True, direct=False) as stored:
        for at in range(0, SIZE, MIB):
            stored.read(MIB, at)
        assert stored.resident_bytes() == SIZE, "the cache must hold the file"

        def ours(places, read=stored.read_into):
            for at in places:
                read(buffer, at)

        def theirs(places, read=os.preadv):
            buffers = [buffer]
            for at in places:
                read(descriptor, buffers, at)

        pages = partition.page_bytes // KIB
        name = f"read_into {unit // KIB} KiB / os.preadv, pages of {pages} KiB"
        result = compare(
            name, goal, rounds, lambda: timed(ours, places), lambda: timed(theirs, places)
        )
    os.close(descriptor)
    return result


def copy_of_a_map(path, unit, rounds, count):
    """What a copy can reach at best: from a mapped file that is in memory, without any cache."""
    places = offsets(count, SIZE, unit)
    buffer = memoryview(bytearray(unit))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        with memoryview(mapped) as view:

            def ours(places):
                for at in places:
                    buffer[:] = view[at : at + unit]

            def theirs(places, read=os.preadv, descriptor=file.fileno()):
                buffers = [buffer]
                for at in places:
                    read(descriptor, buffers, at)

            name = f"for comparison: copy of {unit // KIB} KiB from mmap / os.preadv"
            return compare(
                name, None, rounds, lambda: timed(ours, places), lambda: timed(theirs, places)
            )


def pins(path, partition, goal, rounds, count):
    places = offsets(count, SIZE, 4096)
    mapped = numpy.memmap(path, numpy.uint64, mode="r")
    mapped.sum()
    with partition.open(path, read_only=True, direct=False) as stored:
        for at in range(0, SIZE, MIB):
            stored.read(MIB, at)

        def ours(places, pin=stored.pin, frombuffer=numpy.frombuffer):
            for at in places:
                frombuffer(pin(at), numpy.uint64).sum()

        def theirs(places):
            for at in places:
                at //= 8
                mapped[at : at + 512].sum()

        return compare(
            "sum of a 4 KiB page: np.frombuffer(pin) / np.memmap",
            goal,
            rounds,
            lambda: timed(ours, places),
            lambda: timed(theirs, places),
        )


def client(address, seed, seconds, begin, counts):
    remote = octavo.attach(address, "disk")
    buffer = bytearray(64 * KIB)
    places = offsets(20_000, SIZE, 64 * KIB)
    random.Random(seed).shuffle(places)
    remote.read_into(buffer, 0)
    begin.wait()
    end = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < end:
        for at in places[count % 19_000 :][:100]:
            remote.read_into(buffer, at)
        count += 100
    counts.put(count)


def throughput(address, processes, seconds):
    context = multiprocessing.get_context("fork")
    begin, counts = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=client, args=(address, seed, seconds, begin, counts))
        for seed in range(processes)
    ]
    [worker.start() for worker in workers]
    total = sum(counts.get(timeout=60) for _ in workers)
    [worker.join() for worker in workers]
    return total / seconds


def server(path, folder, goal, rounds, seconds):
    address = f"unix:{folder}/nbd.sock"
    config = os.path.join(folder, "octavo.toml")
    with open(config, "w") as file:
        file.write(
            f'[cache]\nmemory_max = "320MiB"\n[[partition]]\nname = "disks"\n'
            f'[[export]]\nname = "disk"\npath = "{path}"\npartition = "disks"\nread_only = true\n'
            f'[listen]\nnbd = "{address}"\ncontrol = "unix:{folder}/control.sock"\n'
        )
    command = [os.environ["OCTAVO_PROGRAM"], "serve", "--config", config]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
        while True:
            try:
                remote = octavo.attach(address, "disk")
                break
            except OSError:
                time.sleep(0.05)
        for at in range(0, SIZE, MIB):
            remote.read(MIB, at)
        ratios, speeds = [], []
        for _ in range(rounds):
            one, four = throughput(address, 1, seconds), throughput(address, 4, seconds)
            ratios.append(four / one)
            speeds.append((one, four))
        process.terminate()
    name = "random 64 KiB of one server: four processes / one"
    return row(name, goal, ratios, one_per_s=speeds[-1][0], four_per_s=speeds[-1][1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--folder", help="where the file of 256 MiB is made")
    arguments = parser.parse_args()
    rounds = max(arguments.rounds, 3)
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = os.path.join(folder, "data")
        with open(path, "wb") as file:
            for seed in range(SIZE // MIB):
                file.write(random.Random(seed).randbytes(MIB))
        with octavo.Cache("320MiB") as cache:
            small = cache.partition("small")
            rows.append(read_into(path, small, 4 * KIB, 1.0, rounds, 20_000))
            rows.append(pins(path, small, 0.8, rounds, 20_000))
            rows.append(read_into(path, small, 64 * KIB, 1.2, rounds, 3_000))
            cache.remove_partition("small")
            large = cache.partition("large", page_bytes=64 * KIB)
            rows.append(read_into(path, large, 64 * KIB, 1.2, rounds, 3_000))
        rows.append(copy_of_a_map(path, 64 * KIB, rounds, 3_000))
        if os.environ.get("OCTAVO_PROGRAM"):
            rows.append(server(path, folder, 1.8, max(rounds // 4, 3), 1.0))
    if arguments.json:
        machine = {"system": platform.platform(), "processors": len(os.sched_getaffinity(0))}
        print(json.dumps({"machine": machine, "rounds": rounds, "rows": rows}, indent=1))
        return
    for one in rows:
        goal = ""
        if one["goal"]:
            goal = f", goal {one['goal']}" + ("" if one["ratio"] >= one["goal"] else "  MISSED")
        print(f"{one['name']:<58} {one['ratio']:5.2f}  ({one['low']:.2f} to {one['high']:.2f}){goal}")


if __name__ == "__main__":
    main()
