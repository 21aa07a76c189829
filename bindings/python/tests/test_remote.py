"""Exports of a running server."""

import pickle
import threading

import octavo
from octavo.file import OctavoFile
from tests.support import PAGE, Served


class Remotes(Served):
    def test_bytes_come_and_go(self):
        with octavo.attach(self.address, "disk") as remote:
            self.assertEqual((remote.size, remote.name), (self.SIZE, "disk"))
            self.assertFalse(remote.read_only)
            buffer = bytearray(3 * PAGE + 5)
            self.assertEqual(remote.read_into(buffer, 1001), len(buffer))
            self.assertEqual(buffer, self.data[1001 : 1001 + len(buffer)])
            self.assertEqual(remote.write(b"octavo", 5001), 6)
            remote.sync()
            around = self.data[5000:5001], self.data[5007:5008]
            self.assertEqual(remote.read(8, 5000), b"octavo".join(around))
            remote.zero(0, PAGE)
            remote.discard(PAGE * 2, PAGE)
            self.assertEqual(remote.read(PAGE), bytes(PAGE))
            self.assertEqual(remote.read(PAGE, PAGE * 2), bytes(PAGE))
        with self.assertRaises(octavo.ClosedError):
            remote.read(1)
        with open(self.disk, "rb") as plain:
            plain.seek(5001)
            self.assertEqual(plain.read(6), b"octavo")

    def test_the_end_is_respected(self):
        remote = octavo.attach(self.address, "disk")
        self.assertEqual(remote.read(100, self.SIZE - 3), self.data[-3:])
        self.assertEqual(remote.read(100, self.SIZE + 5), b"")
        with self.assertRaises(octavo.PastEndError):
            remote.write(b"1234", self.SIZE - 3)

    def test_many_threads_have_requests_in_flight(self):
        remote = octavo.attach(self.address, "disk", connections_max=3)
        wrong = []

        def work(number):
            region = number * 256 * 1024
            mark, buffer = bytes([number]) * 1000, bytearray(10_000)
            for step in range(100):
                remote.write(mark, region + step * 1000)
                remote.read_into(buffer, region)
                known = mark * min(step + 1, 10)
                if buffer[: len(known)] != known:
                    wrong.append((number, step))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(wrong, [])

    def test_what_is_missing_is_named(self):
        self.assertEqual(octavo.exports(self.address), ["disk"])
        with self.assertRaisesRegex(octavo.IoError, 'the export "other"'):
            octavo.attach(self.address, "other")
        with self.assertRaises(octavo.ConfigError):
            octavo.attach("/no/scheme")
        with self.assertRaises(octavo.IoError):
            octavo.attach(f"unix:{self.path('no.sock')}", "disk")

    def test_a_pickled_remote_reads_the_same_export(self):
        remote = octavo.attach(self.address, "disk", timeout=30)
        copy = pickle.loads(pickle.dumps(remote))
        self.assertEqual(copy.read(10, 50), self.data[50:60])
        file = OctavoFile(remote)
        file.seek(77)
        copy = pickle.loads(pickle.dumps(file))
        self.assertEqual(copy.read(3), self.data[77:80])

    def test_reads_survive_a_restart_and_a_sync_tells_of_lost_writes(self):
        remote = octavo.attach(self.address, "disk")
        remote.read(1)
        self.stop()
        self.start()
        self.assertEqual(remote.read(10), self.data[:10])
        remote.sync()
        remote.write(b"lost", 100)
        self.stop(kill=True)
        self.start()
        self.assertEqual(remote.read(4, 200), self.data[200:204])
        with self.assertRaisesRegex(octavo.IoError, "may have lost"):
            remote.sync()
        remote.write(b"kept", 100)
        remote.sync()

    def test_a_server_that_is_gone_is_an_error(self):
        remote = octavo.attach(self.address, "disk")
        self.stop()
        with self.assertRaises(octavo.IoError):
            remote.read(1)

    def test_statistics_are_dicts(self):
        octavo.attach(self.address, "disk").read(PAGE)
        server = octavo.Server(self.path("control.sock"))
        stat = server.stat()
        self.assertEqual(stat["partitions"][0]["name"], "disks")
        self.assertGreaterEqual(server.partition("disks")["requests_read"], 1)
        server.sync()
        with self.assertRaisesRegex(octavo.IoError, "no verb"):
            server.ask("dance")
        with self.assertRaisesRegex(octavo.IoError, "no server listens"):
            octavo.Server(self.path("nothing.sock")).stat()
