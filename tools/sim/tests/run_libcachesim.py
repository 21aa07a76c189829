"""Misses of libCacheSim's policies, for libcachesim.rs to compare with.

Reads lines of a trace file in the format oracleGeneral and a capacity, separated by a tab, and writes for each and each policy a line of
trace, capacity, policy and misses. A first line with the version says that the library is there.
"""

import sys
import threading

import libcachesim

POLICIES = {
    "global-lru": libcachesim.LRU,
    "global-fifo": libcachesim.FIFO,
    "global-clock": libcachesim.Clock,
    "global-2q": libcachesim.TwoQ,
    "global-arc": libcachesim.ARC,
    "global-lirs": libcachesim.LIRS,
    "global-lfu": libcachesim.LFU,
    "global-s3fifo": libcachesim.S3FIFO,
    "global-sieve": libcachesim.Sieve,
    "global-wtinylfu": libcachesim.WTinyLFU,
    "global-lhd": libcachesim.LHD,
    "global-opt": libcachesim.Belady,
}



def run(trace, capacity, name):
    reader = libcachesim.TraceReader(trace, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    # Objects have one byte: a capacity in bytes is one in pages. The hash tables start at 2^16 entries.
    cache = POLICIES[name](int(capacity), hashpower=16)
    miss_ratio, _ = cache.process_trace(reader)
    print(trace, capacity, name, miss_ratio, sep="\t", flush=True)


print(libcachesim.__version__, flush=True)
for line in sys.stdin:
    for name in POLICIES:
        # Each in a thread of its own: the state of the random numbers is a thread's, and begins anew with it.
        thread = threading.Thread(target=run, args=(*line.rstrip("\n").split("\t"), name))
        thread.start()
        thread.join()
