// A real server under load with the page in front of it, in a folder of its own.
import { spawn } from "node:child_process";
import net from "node:net";
import { createInterface } from "node:readline";
import { mkdtempSync, openSync, truncateSync, writeFileSync, closeSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export const TOKEN = "a-token-of-the-browser-suite";
const PROGRAM = process.env.OCTAVO_PROGRAM;
const PATIENCE_MS = 60_000;

const PARTITIONS = { vm1: 'cache_mode = "writeback"\nmin = "8MiB"', vm2: 'cache_mode = "writeback"\nmax = "48MiB"',
  db: 'cache_mode = "writethrough"' };

export async function until(what, isSo) {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await isSo().catch(() => null);
    if (found) return found;
    if (Date.now() > end) throw new Error(`timed out: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

export class Place {
  constructor() {
    // Short: the paths of sockets may have 107 bytes.
    this.folder = mkdtempSync(join(tmpdir(), "octavo-web-"));
    this.children = new Set();
    const config = ['[cache]\nmemory_max = "96MiB"'];
    for (const [name, keys] of Object.entries(PARTITIONS)) {
      const disk = this.path(`${name}.raw`);
      closeSync(openSync(disk, "w"));
      truncateSync(disk, 512 << 20);
      config.push(`[[partition]]\nname = "${name}"\n${keys}`,
        `[[export]]\nname = "${name}"\npath = "${disk}"\npartition = "${name}"`);
    }
    config.push(`[listen]\nnbd = "unix:${this.path("nbd.sock")}"\ncontrol = "unix:${this.path("control.sock")}"`);
    writeFileSync(this.path("octavo.toml"), config.join("\n"));
    writeFileSync(this.path("token"), TOKEN, { mode: 0o600 });
  }

  path(name) {
    return join(this.folder, name);
  }

  run(program, words) {
    const log = openSync(this.path("log"), "a");
    const child = spawn(program, words, { stdio: ["ignore", "pipe", log] });
    closeSync(log);
    this.children.add(child);
    child.exited = new Promise((resolve) => child.once("exit", resolve));
    child.once("exit", () => this.children.delete(child));
    return child;
  }

  async start() {
    await this.startServer();
    this.web = this.run(PROGRAM, ["web", "--socket", this.path("control.sock"), "--listen", "127.0.0.1:0",
      "--token-file", this.path("token"), "--record", this.path("figures.jsonl"), "--interval", "500ms"]);
    this.url = await new Promise((resolve, reject) => {
      this.web.stdout.once("data", (text) => resolve(String(text).split(" ")[0]));
      this.web.once("exit", () => reject(new Error("octavo web has ended")));
    });
  }

  async startServer() {
    this.server = this.run(PROGRAM, ["serve", "--config", this.path("octavo.toml")]);
    this.server.stdout.resume();
    await until("the server listens", () => this.ask({ do: "stat" }));
    this.load();
  }

  // Reads and writes that need more memory than there is.
  load() {
    const jobs = Object.keys(PARTITIONS).flatMap((name, at) => [`--name=${name}`,
      `--uri=nbd+unix:///${name}?socket=${this.path("nbd.sock")}`, `--size=${100 + 80 * at}m`]);
    this.fio = this.run("fio", ["--ioengine=nbd", "--rw=randrw", "--rwmixread=80", "--bs=4k", "--time_based",
      "--runtime=3600", "--random_distribution=zipf:1.1", "--iodepth=4", "--rate_iops=1500", "--thread", "--group_reporting",
      "--eta=never", ...jobs]);
    this.fio.stdout.resume();
  }

  // Asks the server; resolves to what its `ok` contains.
  ask(request) {
    return new Promise((resolve, reject) => {
      const socket = net.connect(this.path("control.sock"), () => socket.write(`${JSON.stringify({ v: 1, ...request })}\n`));
      const lines = createInterface({ input: socket });
      lines.once("line", (line) => {
        socket.destroy();
        const { ok, error } = JSON.parse(line);
        if (error) reject(new Error(error.message));
        else resolve(ok);
      });
      for (const failed of [socket, lines]) failed.on("error", reject);
      socket.once("close", () => reject(new Error("the server closed the connection")));
    });
  }

  // Kills the server as a crash would.
  async killServer() {
    this.fio.kill("SIGKILL");
    this.server.kill("SIGKILL");
    await this.server.exited;
  }

  async report() {
    const output = this.path("report.html");
    const made = this.run(PROGRAM, ["report", this.path("figures.jsonl"), "--output", output]);
    if (await made.exited !== 0) throw new Error("octavo report has failed");
    return output;
  }

  async stop() {
    const exits = [...this.children].map((child) => {
      child.kill("SIGKILL");
      return child.exited;
    });
    await Promise.all(exits);
    rmSync(this.folder, { recursive: true });
  }
}
