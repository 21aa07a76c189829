// A control socket in front of a real server's: passes requests on, and answers the verbs that the
// server does not know, so that every view can be tested with any server.
import net from "node:net";
import { createInterface } from "node:readline";

const BOUNDS_US = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];

// Asks the real server. Resolves to its whole reply.
export function ask(path, request) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(path, () => socket.write(`${JSON.stringify({ v: 1, ...request })}\n`));
    const lines = createInterface({ input: socket });
    lines.once("line", (line) => {
      socket.destroy();
      resolve(JSON.parse(line));
    });
    for (const failed of [socket, lines]) failed.on("error", reject);
    socket.once("close", () => reject(new Error("the server closed the connection")));
  });
}

// What the server would answer, from what it does answer. `events` is the list of events so far.
const ANSWERS = {
  async plan(path) {
    const { partitions } = (await ask(path, { do: "partitions" })).ok;
    const { cache } = (await ask(path, { do: "stat" })).ok;
    const proposals = partitions.map(({ name, current, min, max }, at) => ({
      name, current_bytes: current, min_bytes: min, max_bytes: max ?? cache.memory_max_bytes,
      proposed_bytes: Math.max(min, Math.round(current * [1.1, 0.7, 1.05][at % 3] / (1 << 20)) * (1 << 20)),
      misses_now: 1000 + 100 * at, misses_proposed: 900 + 80 * at,
    }));
    return { total_bytes: cache.memory_max_bytes, partitions: proposals };
  },
  async resize(path, { sizes }) {
    for (const [name, bytes] of sizes) {
      const reply = await ask(path, { do: "set", partition: name, values: [["max", String(bytes)]] });
      if (reply.error) throw new Error(reply.error.message);
    }
    return {};
  },
  async sets() {
    return { ways: 16, sets: 512, sampled: 512, occupancy: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 5, 10, 20, 60, 115, 300],
      dirty: [200, 120, 80, 50, 30, 20, 8, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0] };
  },
  async latency(path) {
    const { partitions } = (await ask(path, { do: "stat" })).ok;
    return { bounds_us: BOUNDS_US, partitions: partitions.map(({ name, writebacks, bypasses }) => ({
      name, kinds: { store: kind(writebacks, 6), bypass: kind(bypasses, 9) },
    })) };
  },
  async events(_path, { after }, events) {
    const fresh = events.filter((event) => event.number > after);
    return { first: events[0]?.number ?? 1, next: events.length + 1, events: fresh };
  },
};

function kind(count, at) {
  const counts = BOUNDS_US.map((_, place) => place === at ? Math.ceil(count / 2) : place === at + 1 ? Math.floor(count / 2) : 0);
  return { counts, count, sum_us: count * BOUNDS_US[at], max_us: BOUNDS_US[at + 1] };
}

// Listens at `path` in front of the server at `real`.
export function standIn(path, real, events) {
  const answer = async (line) => {
    const request = JSON.parse(line);
    const reply = await ask(real, request);
    const isUnknown = reply.error?.message.startsWith("there is no verb");
    if (!isUnknown || !(request.do in ANSWERS)) return reply;
    try {
      return { v: 1, ok: await ANSWERS[request.do](real, request, events) };
    } catch (error) {
      return { v: 1, error: { message: error.message } };
    }
  };
  const server = net.createServer((socket) => {
    let before = Promise.resolve();
    const lines = createInterface({ input: socket });
    lines.on("error", () => socket.destroy());
    lines.on("line", (line) => {
      before = before.then(() => answer(line))
        .then((reply) => socket.write(`${JSON.stringify(reply)}\n`))
        // The real server has gone: so does this connection.
        .catch(() => socket.destroy());
    });
    socket.on("error", () => socket.destroy());
  });
  server.listen(path);
  return server;
}
