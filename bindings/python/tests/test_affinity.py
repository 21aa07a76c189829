"""Which worker owns which key."""

import doctest
import random
import unittest

from octavo import affinity
from octavo.affinity import assign, owner, score

# Fixed: routers in other languages have the same rule.
SCORES = {
    ("worker-0", ""): 0xbf0a67b4ac6dd455,
    ("worker-0", "a"): 0x13ba8f1ccce28631,
    ("worker-1", "a"): 0x96f940637404a7a4,
    ("w", "bucket/part-00000.parquet"): 0x5b5c04b02720060d,
    ("", ""): 0x6e340b9cffb37a98,
    ("knoten-ä", "schlüssel"): 0xe98387d04c0e6bef,
}
OWNERS = {
    "": "worker-2",
    "a": "worker-7",
    "bucket/part-00000.parquet": "worker-5",
    "bucket/part-00001.parquet": "worker-2",
    "lineitem/17.parquet": "worker-1",
}


def load_tests(_loader, tests, _pattern):
    tests.addTests(doctest.DocTestSuite(affinity))
    return tests


class Affinity(unittest.TestCase):
    def test_scores_are_those_of_the_rule(self):
        for (worker, key), expected in SCORES.items():
            self.assertEqual(score(worker, key), expected, (worker, key))

    def test_owners_are_those_of_the_rule_in_any_order(self):
        workers = [f"worker-{number}" for number in range(8)]
        for key, expected in OWNERS.items():
            self.assertEqual(owner(key, workers), expected, key)
            self.assertEqual(owner(key, reversed(workers)), expected, key)
        self.assertEqual(assign(OWNERS, iter(workers)), OWNERS)

    def test_names_of_files_that_are_no_text_have_owners(self):
        name = b"\xff.bin".decode(errors="surrogateescape")
        self.assertEqual(score("w", name), 0xbbab3be5d22ab13b)

    def test_no_workers_is_an_error(self):
        with self.assertRaises(ValueError):
            owner("key", [])
        self.assertEqual(assign([], []), {})

    def test_keys_are_balanced(self):
        keys = [f"bucket/part-{number:05}.parquet" for number in range(10_000)]
        for count in 2, 4, 16:
            workers = [f"worker-{number}" for number in range(count)]
            found = list(assign(keys, workers).values())
            mean = len(keys) / count
            # Six standard deviations of a fair choice.
            room = 6 * (mean * (1 - 1 / count)) ** 0.5
            for worker in workers:
                self.assertLess(abs(found.count(worker) - mean), room, (count, worker))

    def test_a_worker_that_leaves_moves_its_own_keys_only(self):
        keys = [f"bucket/part-{number:05}.parquet" for number in range(5_000)]
        workers = [f"10.0.0.{number}" for number in range(10)]
        before = assign(keys, workers)
        for gone in random.Random(5).sample(workers, 3):
            after = assign(keys, [worker for worker in workers if worker != gone])
            moved = [key for key in keys if before[key] != after[key]]
            self.assertEqual(moved, [key for key in keys if before[key] == gone])
            self.assertLessEqual(len(moved), 1.2 * len(keys) / len(workers))
