/** Locks of files that end with the process that holds them. Node has none, so each system's own way is used: the one by which the
 *  native program sees these locks and the other way round, on Linux and macOS (flock). */
import childProcess from "node:child_process";
import fs from "node:fs";
import net from "node:net";

const O_EXLOCK = 0x20; // of macOS and BSD

/** An open file (of System) is locked by a program that inherits it: the lock belongs to the open file, not to the process. */
function lockByProgram(file, system) {
  const own = file.fd ?? fs.openSync(system.native(file.path), "r"), release = file.fd === undefined ? () => fs.closeSync(own) : undefined;
  const { status, error } = childProcess.spawnSync("flock", ["-n", "-x", "3"], { stdio: ["ignore", "ignore", "ignore", own] });
  if (status === 0) return { release };
  release?.();
  return { error: error || status !== 1 ? "ENOLCK" : "EAGAIN" };
}

/** The file is opened again, with a lock. */
function lockByOpening(file, system) {
  try {
    const own = fs.openSync(system.native(file.path), fs.constants.O_RDONLY | fs.constants.O_NONBLOCK | O_EXLOCK);
    return { release: () => fs.closeSync(own) };
  } catch (error) {
    return { error: error.code === "EAGAIN" ? "EAGAIN" : "ENOLCK" };
  }
}

/** A lock of the thread that serves `serveLocks`. */
function lockByName(file, system, ask) {
  const { dev, ino } = system.statOf([...system.open].find(([, open]) => open === file)[0]), name = `tessera-checkpoint-${dev.toString(16)}-${ino.toString(16)}`;
  return ask("lock", name) ? { release: () => ask("unlock", name) } : { error: "EAGAIN" };
}

/** The function that locks on this platform. `ask(what, name)` asks the thread that serves `serveLocks`, and waits. */
export function locker(platform, ask) {
  if (platform === "win32") return (file, system) => lockByName(file, system, ask);
  return platform === "linux" ? lockByProgram : lockByOpening;
}

/** Where a name is locked by listening there: a named pipe of Windows exists once, and as long as its process. */
export const pipeOf = (name) => `\\\\.\\pipe\\${name}`;

/** Answers what `ask` asks. */
export function lockServer(addressOf = pipeOf) {
  const servers = new Map();
  return (what, name) => new Promise((resolve) => {
    if (what === "unlock") {
      const server = servers.get(name);
      servers.delete(name);
      return server ? server.close(() => resolve(true)) : resolve(true);
    }
    const server = net.createServer((socket) => socket.destroy());
    server.once("error", () => resolve(false));
    server.listen(addressOf(name), () => {
      server.unref();
      servers.set(name, server);
      resolve(true);
    });
  });
}
