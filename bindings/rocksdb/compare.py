#!/usr/bin/env python3
"""Compares ways to cache RocksDB's tables, with Debian's db_bench and equal memory.

    compare.py PLUGIN DIRECTORY [CASE..]      as root, for memory control groups

Each run of db_bench has a memory control group of its own with the same limit, M + P, whatever
caches the tables. M is the memory for tables: the cache has all of it, a block cache 16 MiB less.
P is for the process: its heap, indexes and filters. The kernel's page cache gets what the process
leaves.
Before each run, all caches of the kernel are dropped; db_bench then reads until its cache is warm
(not measured), and reads again (measured). Contestants take turns.
"""

import os
import re
import statistics
import subprocess
import sys
import time

MIB = 1 << 20
MEMORY = int(os.environ.get("MEMORY_MIB", "256")) * MIB
PROCESS = int(os.environ.get("PROCESS_MIB", "40")) * MIB
# A block cache of M would not fit: the allocator needs some more for it.
BLOCK_CACHE = MEMORY - int(os.environ.get("ALLOCATOR_MIB", "16")) * MIB
ROUNDS = int(os.environ.get("ROUNDS", "3"))
WARM_S = int(os.environ.get("WARM_SECONDS", "8"))
SECONDS = int(os.environ.get("MEASURE_SECONDS", "6"))
GROUPS = "/sys/fs/cgroup/memory"
VALUE_BYTES, RECORD_BYTES = 400, 427
SMALL = 8 * MIB

# octavo: the plug-in and no block cache; kernel: no block cache either. octavo-8, kernel-8: with a
# block cache of 8 MiB. lru, hyper: RocksDB's block caches, with direct reads.
CONTESTANTS = os.environ.get("CONTESTANTS", "octavo octavo-8 kernel kernel-8 lru hyper").split()

# Name: size of the records in percent of M, compression ("aligned": none, and each block is one
# page), threads, benchmark, more options.
BATCH = ["--multiread_batched", "--batch_size=16"]
SKEW = ["--read_random_exp_range=8"]
CASES = {
    "hits_1": (50, "none", 1, "readrandom", []),
    "hits_2": (50, "none", 2, "readrandom", []),
    "random_150": (150, "none", 4, "readrandom", []),
    "random_300": (300, "none", 4, "readrandom", []),
    "skewed_150": (150, "none", 4, "readrandom", SKEW),
    "skewed_300": (300, "none", 4, "readrandom", SKEW),
    "batches_150": (150, "none", 4, "multireadrandom", BATCH),
    "batches_300": (300, "none", 4, "multireadrandom", BATCH),
    "random_150_snappy": (150, "snappy", 4, "readrandom", []),
    "skewed_150_snappy": (150, "snappy", 4, "readrandom", SKEW),
    "skewed_300_snappy": (300, "snappy", 4, "readrandom", SKEW),
    "random_150_aligned": (150, "aligned", 4, "readrandom", []),
    "skewed_150_aligned": (150, "aligned", 4, "readrandom", SKEW),
}


def options(database, percent, compression):
    is_aligned = compression == "aligned"
    return [
        f"--db={database}",
        f"--num={MEMORY // 100 * percent // RECORD_BYTES}",
        f"--value_size={VALUE_BYTES}",
        f"--compression_type={'none' if is_aligned else compression}",
        f"--block_align={'true' if is_aligned else 'false'}",
        "--bloom_bits=10",
        "--write_buffer_size=8388608",
        "--target_file_size_base=16777216",
        "--max_bytes_for_level_base=67108864",
        "--verify_checksum=true",
    ]


def fill(directory, percent, compression):
    database = os.path.join(directory, f"db-{MEMORY // MIB}-{percent}-{compression}")
    if not os.path.exists(os.path.join(database, "filled")):
        command = ["db_bench", "--benchmarks=filluniquerandom,compact", "--disable_wal=1"]
        command += options(database, percent, compression)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        open(os.path.join(database, "filled"), "w").close()
    return database


def contestant(name, plugin):
    """Returns db_bench's options and the environment of a contestant."""
    small = SMALL if name.endswith("-8") else 0
    if name.startswith("kernel"):
        return [f"--cache_size={small}"], {}
    if name.startswith("octavo"):
        environment = {"LD_PRELOAD": plugin, "OCTAVO_MEMORY_MAX": str(MEMORY), "OCTAVO_STATS": "1"}
        environment |= {key: value for key, value in os.environ.items() if "OCTAVO_" in key}
        return ["--fs_uri=octavo://", f"--cache_size={small}"], environment
    kind = {"lru": "lru_cache", "hyper": "hyper_clock_cache"}[name]
    return [f"--cache_size={BLOCK_CACHE}", f"--cache_type={kind}", "--use_direct_reads=true"], {}


class Group:
    def __init__(self, limit):
        self.path = os.path.join(GROUPS, f"octavo-compare-{os.getpid()}")
        os.makedirs(self.path, exist_ok=True)
        self.put("memory.limit_in_bytes", limit)

    def put(self, name, value):
        with open(os.path.join(self.path, name), "w") as file:
            file.write(str(value))

    def peak(self):
        with open(os.path.join(self.path, "memory.max_usage_in_bytes")) as file:
            return int(file.read())

    def end(self):
        self.put("memory.force_empty", 0)
        for _ in range(50):
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.05)


def disk_bytes(process):
    try:
        with open(f"/proc/{process}/io") as file:
            return int(re.search(r"^read_bytes: (\d+)", file.read(), re.M).group(1))
    except OSError:
        return 0


def processor_s(process):
    """Seconds of processor time that a process has used. Unlike its speed, they hardly depend on
    what else the machine does."""
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def run(name, plugin, database, case):
    """Returns operations per second; bytes read from the disk, and microseconds of processor time,
    per operation; the group's peak; and the plug-in's counters."""
    percent, compression, threads, benchmark, more = case
    drop_caches()
    group = Group(MEMORY + PROCESS)
    own, environment = contestant(name, plugin)
    command = ["stdbuf", "-oL", "db_bench", "--use_existing_db=1", f"--threads={threads}"]
    command += options(database, percent, compression) + own + more
    # The last benchmark keeps the process until its counters have been read.
    warm = f"{benchmark}[W{max(WARM_S // SECONDS, 1)}]"
    command += [f"--benchmarks={warm},{benchmark},levelstats", f"--duration={SECONDS}"]
    enter = ["sh", "-c", f"echo $$ > {group.path}/cgroup.procs && exec \"$@\"", "sh"]
    preload = [f"{key}={value}" for key, value in environment.items()]
    process = subprocess.Popen(enter + ["env"] + preload + command, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    before = (0, 0.0)
    operations = seconds = read = used = 0
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.match(rf"{benchmark} .*operations;", line):
            now = (disk_bytes(process.pid), processor_s(process.pid))
            found = re.search(r"([\d.]+) seconds (\d+) operations", line)
            seconds, operations = float(found.group(1)), int(found.group(2))
            read, used = now[0] - before[0], now[1] - before[1]
            before = now
    complaints = process.stderr.read()
    code = process.wait()
    peak = group.peak()
    group.end()
    if code != 0 or not operations:
        raise SystemExit(f"{name}: db_bench ended with {code}: {complaints[-800:]}{''.join(lines)[-800:]}")
    counters = [line for line in complaints.splitlines() if line.startswith("octavo:")]
    return operations / seconds, read / operations, used * 1e6 / operations, peak, counters


def main():
    plugin, directory = os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2])
    os.makedirs(directory, exist_ok=True)
    names = sys.argv[3:] or list(CASES)
    load = open("/proc/loadavg").read().split()[0]
    print(f"M {MEMORY // MIB} MiB, P {PROCESS // MIB} MiB, {ROUNDS} rounds, load {load}")
    print("| case | cache | operations/s | lowest to highest | octavo is | processor us | pages read |"
          " peak MiB |\n|---|---|---|---|---|---|---|---|")
    for name in names:
        case = CASES[name]
        database = fill(directory, case[0], case[1])
        rates = {side: [] for side in CONTESTANTS}
        pages = {side: [] for side in CONTESTANTS}
        costs = {side: [] for side in CONTESTANTS}
        peaks = {side: 0 for side in CONTESTANTS}
        for _ in range(ROUNDS):
            for side in CONTESTANTS:
                rate, read, cost, peak, counters = run(side, plugin, database, case)
                rates[side].append(rate)
                costs[side].append(cost)
                pages[side].append(read / 4096)
                peaks[side] = max(peaks[side], peak)
                if os.environ.get("VERBOSE"):
                    words = name, side, round(rate), round(read / 4096, 4), round(cost, 2)
                    print(*words, *counters, file=sys.stderr)
        first = rates[CONTESTANTS[0]]
        for side in CONTESTANTS:
            mine = rates[side]
            ratio = statistics.median(a / b for a, b in zip(first, mine))
            spread = f"{min(mine):.0f} to {max(mine):.0f}"
            print(f"| `{name}` | {side} | {statistics.median(mine):.0f} | {spread} | {ratio:.2f} |"
                  f" {statistics.median(costs[side]):.2f} | {statistics.median(pages[side]):.3f} |"
                  f" {peaks[side] // MIB} |", flush=True)
    print(f"load at the end: {open('/proc/loadavg').read().split()[0]}")


if __name__ == "__main__":
    main()
