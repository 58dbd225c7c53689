/** The system calls of the program, made by Node's fs: what Emscripten's C library asks its host for (see the imports of
 *  program.wasm). Each returns 0 or a positive result, or the negative number of an error, as Linux' system calls do; those of
 *  WASI return the positive number.
 *
 *  Node has no calls relative to an open directory. A directory's descriptor is therefore its path and its identity: a call
 *  relative to it fails with ESTALE if another directory has taken that path, and a rename by this program moves the paths. */
import crypto from "node:crypto";
import nodeFs from "node:fs";
import os from "node:os";
import tty from "node:tty";
import { isAbsolute, isWithin, renamed, toProgram, within } from "./paths.js";

/** The numbers of WASI, which Emscripten's C library uses. */
const ERRNO = { E2BIG: 1, EACCES: 2, EAGAIN: 6, EBADF: 8, EBUSY: 10, EDQUOT: 19, EEXIST: 20, EFAULT: 21, EFBIG: 22, EINTR: 27, EINVAL: 28, EIO: 29, EISDIR: 31,
  ELOOP: 32, EMFILE: 33, EMLINK: 34, ENAMETOOLONG: 37, ENFILE: 41, ENODEV: 43, ENOENT: 44, ENOLCK: 46, ENOMEM: 48, ENOSPC: 51, ENOSYS: 52, ENOTDIR: 54, ENOTEMPTY: 55,
  ENOTSUP: 58, ENOTTY: 59, ENXIO: 60, EOVERFLOW: 61, EPERM: 63, EPIPE: 64, EROFS: 69, ESPIPE: 70, ESTALE: 72, ETXTBSY: 74, EXDEV: 75, EOPNOTSUPP: 138 };
const OPEN = { ACCESS: 3, WRONLY: 1, RDWR: 2, CREAT: 0o100, EXCL: 0o200, NOCTTY: 0o400, TRUNC: 0o1000, APPEND: 0o2000, NONBLOCK: 0o4000, DIRECTORY: 0o200000, NOFOLLOW: 0o400000, PATH: 0o10000000 };
const AT_FDCWD = -100, AT_SYMLINK_NOFOLLOW = 0x100, AT_REMOVEDIR = 0x200, AT_EMPTY_PATH = 0x1000;
const SIGPIPE = 13, TIOCGWINSZ = 0x5413, DIRENT_SIZE = 280, TYPES = { directory: 4, file: 8, link: 10 }, PAGE = 65536;
/** How often a rename is tried again that another program prevents by having the file open, as virus scanners on Windows do. */
const RENAME_TRIES = 10, RENAME_WAIT_MS = 20;

/** Ends the program: thrown through its frames. */
export class Exit {
  constructor(status, signal) {
    this.status = status;
    this.signal = signal;
  }
}

/** A failure with the name of its error, like those of Node. */
const failure = (code) => Object.assign(new Error(code), { code });

/** The number of the error that Node threw. */
export function numberOf(error) {
  if (error instanceof Exit || typeof error?.code !== "string") throw error;
  return ERRNO[error.code] ?? (error.code === "ERR_FS_FILE_TOO_LARGE" ? ERRNO.EFBIG : ERRNO.EIO);
}

/** options: fs, platform (for tests), env, columns ([stdout, stderr]), lock (takes the system's lock of a file, see locks.js),
 *  signals ({ pending(): number or 0, unfinished(is) }). */
export class System {
  constructor(options = {}) {
    this.fs = options.fs ?? nodeFs;
    this.isWindows = (options.platform ?? process.platform) === "win32";
    this.options = options;
    this.env = Object.entries(options.env ?? process.env).map(([name, value]) => Buffer.from(`${name}=${value}\0`));
    this.open = new Map([0, 1, 2].map((fd) => [fd, { fd, isStream: true }]));
  }

  /** Must follow the instance's creation and precede its first call. */
  attach(exports) {
    this.exports = exports;
    this.memory = exports.memory;
  }

  get view() {
    if (this.dataView?.buffer !== this.memory.buffer) this.dataView = new DataView(this.memory.buffer);
    return this.dataView;
  }

  bytes(at, size) {
    return new Uint8Array(this.memory.buffer, at >>> 0, size);
  }

  /** A NUL-terminated path. On POSIX systems, names are bytes; each is a character here, so that names that are not UTF-8 stay as they are. */
  text(at) {
    const memory = new Uint8Array(this.memory.buffer), end = memory.indexOf(0, at >>> 0), buffer = Buffer.from(memory.subarray(at >>> 0, end));
    return this.isWindows ? buffer.toString("utf8") : buffer.toString("latin1");
  }

  /** The path as Node takes it. */
  native(path) {
    if (path === "") throw failure("ENOENT");
    return this.isWindows ? path : Buffer.from(path, "latin1");
  }

  /** A text of Node, in bytes. */
  encoded(text) {
    return Buffer.isBuffer(text) ? text : Buffer.from(toProgram(text, this.isWindows), "utf8");
  }

  file(fd) {
    const file = this.open.get(fd);
    if (!file) throw failure("EBADF");
    return file;
  }

  /** Node's descriptor of a file; one that was closed for a rename is opened again. */
  descriptor(fd) {
    const file = this.file(fd);
    if (file.directory) throw failure("EISDIR");
    if (file.isPath) throw failure("EBADF");
    if (file.fd < 0) file.fd = this.fs.openSync(this.native(file.path), file.flags);
    return file.fd;
  }

  identity(path) {
    const info = this.fs.statSync(this.native(path), { bigint: true });
    return { dev: info.dev, ino: info.ino };
  }

  /** The path of a name in an open directory. */
  at(directory, path) {
    if (directory === AT_FDCWD || isAbsolute(path, this.isWindows)) return path;
    const file = this.file(directory);
    if (!file.directory) throw failure("ENOTDIR");
    const now = this.identity(file.path);
    if (now.dev !== file.directory.dev || now.ino !== file.directory.ino) throw failure("ESTALE");
    return path === "." ? file.path : within(file.path, path, this.isWindows);
  }

  add(file) {
    let fd = 3;
    while (this.open.has(fd)) fd++;
    this.open.set(fd, file);
    return fd;
  }

  /** Flags of open without those that only count when a file is created. */
  flags(given, creates) {
    const { constants } = this.fs, names = creates ? ["CREAT", "EXCL", "TRUNC", "APPEND", "NOFOLLOW", "NONBLOCK", "NOCTTY"] : ["APPEND"];
    let flags = [constants.O_RDONLY, constants.O_WRONLY, constants.O_RDWR][given & OPEN.ACCESS] ?? 0;
    for (const name of names) if (given & OPEN[name]) flags |= constants[`O_${name}`] ?? 0;
    return flags;
  }

  openAt(directory, path, flags, mode) {
    const full = this.at(directory, path), fs = this.fs;
    if (!(flags & OPEN.CREAT)) {
      const info = flags & OPEN.NOFOLLOW ? fs.lstatSync(this.native(full)) : fs.statSync(this.native(full));
      if (info.isSymbolicLink()) throw failure(flags & OPEN.DIRECTORY ? "ENOTDIR" : "ELOOP");
      if (info.isDirectory()) {
        if (flags & OPEN.ACCESS) throw failure("EISDIR");
        if (!(flags & OPEN.PATH)) fs.accessSync(this.native(full), fs.constants.R_OK);
        return this.add({ path: full, directory: this.identity(full) });
      }
      if (flags & OPEN.DIRECTORY) throw failure("ENOTDIR");
      if (flags & OPEN.PATH) return this.add({ path: full, isPath: true });
    }
    const fd = fs.openSync(this.native(full), this.flags(flags, true), mode);
    return this.add({ fd, path: full, flags: this.flags(flags, false), writes: (flags & OPEN.ACCESS) !== 0, appends: (flags & OPEN.APPEND) !== 0, position: 0 });
  }

  close(fd) {
    const file = this.file(fd);
    this.open.delete(fd);
    file.release?.();
    if (file.fd > 2) this.fs.closeSync(file.fd);
  }

  // ---- stat ----

  putStat(at, info) {
    const view = this.view, seconds = (ns) => Number(ns / 1000000000n) | 0, rest = (ns) => Number(ns % 1000000000n);
    this.bytes(at, 88).fill(0);
    view.setUint32(at, Number(BigInt.asUintN(32, info.dev)), true);
    view.setUint32(at + 8, Number(BigInt.asUintN(32, info.ino)), true);
    view.setUint32(at + 12, Number(info.mode), true);
    view.setUint32(at + 16, Number(info.nlink), true);
    view.setUint32(at + 20, Number(info.uid), true);
    view.setUint32(at + 24, Number(info.gid), true);
    view.setUint32(at + 28, Number(BigInt.asUintN(32, info.rdev)), true);
    view.setBigInt64(at + 40, info.size, true);
    view.setInt32(at + 48, 4096, true);
    view.setInt32(at + 52, Number(info.blocks === undefined ? info.size / 512n : info.blocks > 0x7fffffffn ? 0x7fffffffn : info.blocks), true);
    [info.atimeNs, info.mtimeNs, info.ctimeNs].forEach((ns, i) => {
      view.setInt32(at + 56 + 8 * i, seconds(ns), true);
      view.setInt32(at + 60 + 8 * i, rest(ns), true);
    });
    view.setBigUint64(at + 80, BigInt.asUintN(64, info.ino), true);
    return 0;
  }

  statOf(fd) {
    const file = this.file(fd);
    return file.directory || file.isPath ? this.fs.statSync(this.native(file.path), { bigint: true }) : this.fs.fstatSync(this.descriptor(fd), { bigint: true });
  }

  statPath(path, follows) {
    return (follows ? this.fs.statSync : this.fs.lstatSync)(this.native(path), { bigint: true });
  }

  // ---- names ----

  /** On Windows, a directory cannot be renamed while files in it are open, nor a file that is to be replaced. Those of this program are
   *  closed; their next use opens them by their new names. */
  park(path) {
    for (const file of this.open.values()) {
      if (file.fd === undefined || file.fd < 0 || file.isStream || !isWithin(file.path, path)) continue;
      this.fs.closeSync(file.fd);
      file.fd = -1;
    }
  }

  rename(from, to) {
    if (this.isWindows) [from, to].forEach((path) => this.park(path));
    for (let tries = 1; ; tries++) {
      try {
        this.fs.renameSync(this.native(from), this.native(to));
        break;
      } catch (error) {
        if (!this.isWindows || tries === RENAME_TRIES || !["EACCES", "EBUSY", "EPERM"].includes(error.code)) throw error;
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, RENAME_WAIT_MS);
      }
    }
    for (const file of this.open.values()) if (file.path !== undefined) file.path = renamed(file.path, from, to);
  }

  /** Entries of a directory: 280 bytes each, which is the size of Emscripten's struct dirent. */
  entries(fd, at, capacity) {
    const file = this.file(fd), view = this.view;
    if (!file.directory) throw failure("ENOTDIR");
    file.names ??= this.fs.readdirSync(this.native(file.path), { withFileTypes: true, ...(this.isWindows ? {} : { encoding: "buffer" }) });
    file.next ??= 0;
    let used = 0;
    for (; file.next < file.names.length && used + DIRENT_SIZE <= capacity; file.next++) {
      const entry = file.names[file.next], name = this.encoded(entry.name);
      if (name.length > 255) continue;
      view.setBigUint64(at + used, BigInt(file.next + 1), true);
      view.setBigInt64(at + used + 8, BigInt(file.next + 1), true);
      view.setUint16(at + used + 16, DIRENT_SIZE, true);
      view.setUint8(at + used + 18, entry.isDirectory() ? TYPES.directory : entry.isFile() ? TYPES.file : entry.isSymbolicLink() ? TYPES.link : 0);
      this.bytes(at + used + 19, DIRENT_SIZE - 19).fill(0).set(name);
      used += DIRENT_SIZE;
    }
    return used;
  }

  readLink(path) {
    const own = /^\/proc\/self\/fd\/(\d+)$/.exec(path); // how the C library finds what a path leads to
    if (own) return this.encoded(this.fs.realpathSync.native(this.native(this.file(Number(own[1])).path), this.isWindows ? "utf8" : "buffer"));
    if (path === "/proc/self/exe") throw failure("ENOENT"); // nothing is installed next to it
    return this.encoded(this.fs.readlinkSync(this.native(path), this.isWindows ? "utf8" : "buffer"));
  }

  // ---- bytes ----

  /** Reads or writes the buffers of an iovec array with `step(buffer, done)`, which returns the number of bytes. */
  each(iov, count, step) {
    let done = 0;
    for (let i = 0; i < count; i++) {
      const at = this.view.getUint32(iov + 8 * i, true), size = this.view.getUint32(iov + 8 * i + 4, true);
      if (size === 0) continue;
      const n = step(this.bytes(at, size), done);
      done += n;
      if (n < size) break;
    }
    return done;
  }

  /** Waits while a pipe that does not block is full or empty. */
  patiently(transfer) {
    for (;;) {
      try {
        return transfer();
      } catch (error) {
        if (error.code === "EOF") return 0; // a pipe's end, on Windows
        if (error.code === "EPIPE") this.endBy(SIGPIPE); // Node ignores the signal
        if (error.code !== "EAGAIN") throw error;
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1);
      }
    }
  }

  /** Node takes positions as numbers or BigInts; null is where the system is. */
  transfer(fd, iov, count, offset, isWrite) {
    const file = this.file(fd), descriptor = this.descriptor(fd);
    if (fd !== 2) this.heed();
    const own = offset === undefined && !file.isStream && !file.appends, start = offset ?? (own ? BigInt(file.position) : undefined);
    const call = isWrite ? this.fs.writeSync : this.fs.readSync;
    const done = this.each(iov, count, (buffer, before) => {
      const position = start === undefined ? null : Number(start) + before;
      return this.patiently(() => call(descriptor, buffer, 0, buffer.length, position));
    });
    if (own) file.position += done;
    return done;
  }

  /** Acts on a signal that has arrived, unless it has to wait. */
  heed() {
    const number = this.options.signals?.pending() ?? 0;
    if (number) this.endBy(number);
  }

  endBy(number) {
    if (this.isEnding) return;
    this.isEnding = true;
    this.exports.tessera_signal(number);
    this.isEnding = false;
  }

  seek(fd, offset, whence) {
    const file = this.file(fd);
    if (file.directory) { // rewinddir
      file.names = file.next = undefined;
      return 0;
    }
    if (file.isStream) throw failure("ESPIPE");
    const from = [0, file.position, whence === 2 ? Number(this.statOf(fd).size) : 0][whence];
    if (from === undefined || from + Number(offset) < 0) throw failure("EINVAL");
    return (file.position = from + Number(offset));
  }

  sync(fd) {
    const file = this.file(fd);
    if (file.isStream || (this.isWindows && file.directory)) return; // Windows syncs no directories
    this.heed();
    // A directory has no descriptor here, and Windows syncs only what may be written.
    const own = file.directory ? this.fs.openSync(this.native(file.path), "r") : this.isWindows && !file.writes ? this.fs.openSync(this.native(file.path), "r+") : undefined;
    try {
      this.fs.fsyncSync(own ?? this.descriptor(fd));
    } finally {
      if (own !== undefined) this.fs.closeSync(own);
    }
  }

  putSpace(path, at) {
    if (!this.fs.statfsSync) throw failure("ENOSYS"); // Node 18.14 and older
    const info = this.fs.statfsSync(this.native(path), { bigint: true });
    let unit = info.bsize, scale = 1n;
    while (info.blocks / scale > 0xffffffffn) scale *= 2n;
    this.bytes(at, 64).fill(0);
    [info.type, unit * scale, info.blocks / scale, info.bfree / scale, info.bavail / scale].forEach((value, i) =>
      this.view.setUint32(at + 4 * i, Number(BigInt.asUintN(32, value)), true));
  }

  // ---- the imports of the module ----

  imports() {
    /** A call that returns a negative number for what Node threw. */
    const call = (body) => (...given) => {
      try {
        return body(...given) ?? 0;
      } catch (error) {
        return -numberOf(error);
      }
    };
    /** The same for WASI's calls, whose result is stored at their last argument. */
    const wasi = (body, put = "setUint32") => (...given) => {
      try {
        const out = given[body.length], result = body(...given);
        if (out !== undefined) this.view[put](out, put === "setBigInt64" ? BigInt(result) : result, true);
        return 0;
      } catch (error) {
        return numberOf(error);
      }
    };
    const lacking = () => -ERRNO.ENOSYS, path = (directory, at) => this.at(directory, this.text(at)), fs = this.fs;
    const mode = (varargs) => (varargs ? this.view.getUint32(varargs, true) : 0);
    const clock = (id, out) => {
      const now = id === 0 ? BigInt(Date.now()) * 1000000n : process.hrtime.bigint();
      this.view.setInt32(out, Number(now / 1000000000n), true);
      this.view.setInt32(out + 4, Number(now % 1000000000n), true);
      return 0;
    };
    const fill = (at, size) => crypto.randomFillSync(this.bytes(at, size));
    const env = {
      exit: (status) => { throw new Exit(status); },
      clock_gettime: clock,
      __clock_gettime: clock,
      emscripten_get_now: () => Number(process.hrtime.bigint()) / 1e6,
      time: (out) => {
        const now = Math.floor(Date.now() / 1000);
        if (out) this.view.setInt32(out, now, true);
        return now;
      },
      _tzset_js: () => {},
      _timegm_js: (tm) => {
        const [second, minute, hour, day, month, year] = [0, 1, 2, 3, 4, 5].map((i) => this.view.getInt32(tm + 4 * i, true));
        return Math.floor(Date.UTC(year + 1900, month, day, hour, minute, second) / 1000) | 0;
      },
      getentropy: (at, size) => { fill(at, size); return 0; },
      getrandom: (at, size) => { fill(at, size); return size; },
      emscripten_memcpy_big: (to, from, size) => this.bytes(to, size).set(this.bytes(from, size)),
      emscripten_get_heap_max: () => 0xffff0000 | 0,
      emscripten_resize_heap: (size) => {
        const have = this.memory.buffer.byteLength, wanted = Math.ceil(((size >>> 0) - have) / PAGE), more = Math.max(wanted, Math.min(64, 65535 - have / PAGE));
        for (const pages of [more, wanted]) {
          try {
            this.memory.grow(pages);
            return 1;
          } catch { /* it is tried with fewer pages */ }
        }
        return 0;
      },
      _mmap_js: lacking, // so that files are read instead of being mapped
      _munmap_js: lacking,
      __syscall_open: call((at, flags, varargs) => this.openAt(AT_FDCWD, this.text(at), flags, mode(varargs))),
      __syscall_openat: call((directory, at, flags, varargs) => this.openAt(directory, this.text(at), flags, mode(varargs))),
      __syscall_fstat64: call((fd, out) => this.putStat(out, this.statOf(fd))),
      __syscall_stat64: call((at, out) => this.putStat(out, this.statPath(this.text(at), true))),
      __syscall_lstat64: call((at, out) => this.putStat(out, this.statPath(this.text(at), false))),
      __syscall_fstatat64: call((directory, at, out, flags) => {
        const name = this.text(at);
        if (name === "" && flags & AT_EMPTY_PATH) return this.putStat(out, this.statOf(directory));
        return this.putStat(out, this.statPath(this.at(directory, name), !(flags & AT_SYMLINK_NOFOLLOW)));
      }),
      __syscall_ftruncate64: call((fd, low, high) => fs.ftruncateSync(this.descriptor(fd), (high >>> 0) * 2 ** 32 + (low >>> 0))),
      __syscall_getdents64: call((fd, at, size) => this.entries(fd, at, size)),
      __syscall_mkdirat: call((directory, at, bits) => fs.mkdirSync(this.native(path(directory, at)), { mode: bits })),
      __syscall_rename: call((from, to) => this.rename(this.text(from), this.text(to))),
      __syscall_renameat: call((directory, from, toDirectory, to) => this.rename(path(directory, from), path(toDirectory, to))),
      __syscall_unlink: call((at) => fs.unlinkSync(this.native(this.text(at)))),
      __syscall_unlinkat: call((directory, at, flags) => {
        const name = this.native(path(directory, at));
        if (!(flags & AT_REMOVEDIR)) return void fs.unlinkSync(name);
        if (fs.lstatSync(name).isSymbolicLink()) throw failure("ENOTDIR");
        fs.rmdirSync(name);
      }),
      __syscall_readlink: call((at, out, size) => {
        const target = this.readLink(this.text(at)).subarray(0, size);
        this.bytes(out, target.length).set(target);
        return target.length;
      }),
      __syscall_getcwd: call((out, size) => {
        const name = this.encoded(process.cwd());
        if (name.length + 1 > size) return -68; // ERANGE
        this.bytes(out, name.length + 1).set([...name, 0]);
        return name.length + 1;
      }),
      __syscall_faccessat: call((directory, at, bits) => fs.accessSync(this.native(path(directory, at)), bits)),
      __syscall_chmod: call((at, bits) => fs.chmodSync(this.native(this.text(at)), bits)),
      __syscall_fchmod: call((fd, bits) => {
        const file = this.file(fd);
        return file.directory ? fs.chmodSync(this.native(file.path), bits) : fs.fchmodSync(this.descriptor(fd), bits);
      }),
      __syscall_chown32: call((at, user, group) => fs.chownSync(this.native(this.text(at)), user >>> 0, group >>> 0)),
      __syscall_fchown32: call((fd, user, group) => {
        const file = this.file(fd);
        return file.directory ? fs.chownSync(this.native(file.path), user >>> 0, group >>> 0) : fs.fchownSync(this.descriptor(fd), user >>> 0, group >>> 0);
      }),
      __syscall_statfs64: call((at, size, out) => this.putSpace(this.text(at), out)),
      __syscall_fcntl64: call((fd, command) => (this.file(fd), command === 3 ? (this.file(fd).writes ? OPEN.RDWR : 0) : 0)), // F_GETFL; nothing is inherited
      __syscall_ioctl: call((fd, request, varargs) => {
        if (request !== TIOCGWINSZ || !tty.isatty(fd)) return -ERRNO.ENOTTY;
        const size = this.view.getUint32(varargs, true);
        this.bytes(size, 8).fill(0);
        this.view.setUint16(size + 2, this.options.columns?.[fd] ?? 0, true);
        return 0;
      }),
    };
    for (const name of ["accept4", "bind", "dup3", "getsockname", "listen", "pipe", "poll", "recvfrom", "sendto", "socket"]) env[`__syscall_${name}`] = lacking;
    return {
      env,
      wasi_snapshot_preview1: {
        proc_exit: (status) => { throw new Exit(status); },
        environ_sizes_get: (count, size) => {
          this.view.setUint32(count, this.env.length, true);
          this.view.setUint32(size, this.env.reduce((sum, text) => sum + text.length, 0), true);
          return 0;
        },
        environ_get: (list, at) => {
          this.env.forEach((text, i) => {
            this.view.setUint32(list + 4 * i, at, true);
            this.bytes(at, text.length).set(text);
            at += text.length;
          });
          return 0;
        },
        fd_close: wasi((fd) => this.close(fd)),
        fd_sync: wasi((fd) => this.sync(fd)),
        fd_read: wasi((fd, iov, count) => this.transfer(fd, iov, count, undefined, false)),
        fd_write: wasi((fd, iov, count) => this.transfer(fd, iov, count, undefined, true)),
        fd_pread: wasi((fd, iov, count, offset) => this.transfer(fd, iov, count, offset, false)),
        fd_pwrite: wasi((fd, iov, count, offset) => this.transfer(fd, iov, count, offset, true)),
        fd_seek: wasi((fd, offset, whence) => this.seek(fd, offset, whence), "setBigInt64"),
        fd_fdstat_get: (fd, out) => {
          if (!this.open.has(fd)) return ERRNO.EBADF;
          this.bytes(out, 24).fill(0);
          this.view.setUint8(out, this.file(fd).isStream && tty.isatty(fd) ? 2 : this.file(fd).directory ? 3 : 4);
          return 0;
        },
      },
      tessera: {
        lock: (fd) => {
          const file = this.open.get(fd);
          if (!file) return ERRNO.EBADF;
          const { error, release } = this.options.lock?.(file, this) ?? { error: "ENOLCK" };
          file.release = release;
          return error ? ERRNO[error] : 0;
        },
        link: (directory, from, toDirectory, to) => -call(() => fs.linkSync(this.native(path(directory, from)), this.native(path(toDirectory, to))))(),
        process_id: () => process.pid,
        user_id: () => process.geteuid?.() ?? 0,
        unfinished: (is) => this.options.signals?.unfinished(is !== 0),
        end_by_signal: (number) => { throw new Exit(128 + number, number); },
        system_name: (name, release, machine, capacity) => {
          for (const [at, text] of [[name, os.type()], [release, os.release()], [machine, os.arch()]]) this.bytes(at, capacity).set(Buffer.from(text).subarray(0, capacity - 1));
        },
      },
    };
  }
}
