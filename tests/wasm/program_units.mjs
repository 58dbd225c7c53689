/** What the command line for Node does on systems other than this one, as far as it can be tried here: separators, drives, renames and locks of
 *  Windows, whose file system is imitated. */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { System, numberOf } from "../../wasm/program/system.js";
import { lockServer, locker, pipeOf } from "../../wasm/program/locks.js";
import { isAbsolute, isWithin, renamed, toArguments, toProgram, within } from "../../wasm/program/paths.js";
import { VALUES } from "../../wasm/program/values.js";
import { check, same, skip, test } from "../support/harness.mjs";

const O_RDONLY = 0, O_WRONLY = 1, O_CREAT = 0o100, O_DIRECTORY = 0o200000, O_NOFOLLOW = 0o400000, AT_FDCWD = -100;
const equal = (is, expected, what = "it") => same(JSON.stringify(expected), JSON.stringify(is), what);

/** A system on this machine's files, with functions of fs replaced; `code` throws what Windows would. */
function systemWith(platform, replaced = {}, options = {}) {
  const system = new System({ platform, fs: Object.assign(Object.create(fs), replaced), ...options });
  system.attach({ memory: new WebAssembly.Memory({ initial: 2 }) });
  return system;
}

const code = (name) => Object.assign(new Error(name), { code: name });
const errorOf = (body) => { try { body(); } catch (error) { return error.code; } return "nothing"; };

function testPaths() {
  test("the program sees one separator", () => {
    equal(toProgram("C:\\runs\\step-1", true), "C:/runs/step-1");
    equal(toProgram("a\\b", false), "a\\b");
    equal(["C:/x", "c:x", "/x", "//server/share", "x/y", "x:y/z"].map((p) => isAbsolute(p, true)), [true, true, true, true, false, true]);
    equal(isAbsolute("C:/x", false), false);
    equal([within("C:/a", "b", true), within("C:/", "b", true), within("a", "D:/b", true), within("a/", "b", true), within("a", "C:b", false)], ["C:/a/b", "C:/b", "D:/b", "a/b", "a/C:b"]);
  });
  test("a rename moves what is below, and nothing else", () => {
    equal(["a/b", "a/b/c", "a/bc", "a", "x"].map((p) => renamed(p, "a/b", "d")), ["d", "d/c", "a/bc", "a", "x"]);
    equal(renamed("a/b/c", "a/b/", "d/"), "d/c");
    equal([isWithin("a/b", "a"), isWithin("ab", "a"), isWithin("a", "a")], [true, false, true]);
  });
  test("paths of the command line are changed, and no other texts", () => {
    const given = (command, ...words) => toArguments(["tessera", command, ...words], (name) => (name === "-o" ? "path" : VALUES[command]?.[name] ?? "flag"), true).slice(2);
    equal(given("convert", "C:\\in\\step", ".\\out\\", "--to", "dcp"), ["C:/in/step", "./out/", "--to", "dcp"]);
    equal(given("convert", "--map", "maps\\a.json", "--rename", "a\\b=c\\d", "--include", "x\\y", "in\\x", "out"), ["--map", "maps/a.json", "--rename", "a\\b=c\\d", "--include", "x\\y", "in/x", "out"]);
    equal(given("validate", "--layout=docs\\layout.json", "--rule=a\\b=off", "--deep", "in\\x"), ["--layout=docs/layout.json", "--rule=a\\b=off", "--deep", "in/x"]);
    equal(given("layout", "in\\x", "-o", "out\\layout.json"), ["in/x", "-o", "out/layout.json"]);
    equal(given("inspect", "https://host/a\\b", "--", "--x\\y"), ["https://host/a\\b", "--", "--x/y"]);
    equal(toArguments(["tessera", "a\\b"], () => "flag", false), ["tessera", "a\\b"], "on POSIX systems, a backslash is part of a name:");
  });
}

function testFiles(scratch) {
  const place = (...names) => path.join(scratch, ...names);
  test("a directory is renamed on Windows while files in it are open", () => {
    fs.mkdirSync(place("work"));
    const held = new Set();
    const system = systemWith("win32", {
      openSync: (...given) => { const fd = fs.openSync(...given); held.add(fd); return fd; },
      closeSync: (fd) => { held.delete(fd); fs.closeSync(fd); },
      renameSync: (from, to) => { if (held.size) throw code("EPERM"); fs.renameSync(from, to); },
    });
    const directory = system.openAt(AT_FDCWD, place("work"), O_DIRECTORY, 0), file = system.openAt(directory, "data", O_CREAT | 2, 0o600);
    fs.writeSync(system.descriptor(file), "before");
    system.rename(place("work"), place("final"));
    equal(held.size, 0, "descriptors that are open during the rename");
    fs.writeSync(system.descriptor(file), " and after", 6);
    equal(fs.readFileSync(place("final/data"), "utf8"), "before and after");
    equal(system.at(directory, "data"), place("final/data"));
    system.close(file);
    equal(held.size, 0);
  });
  test("a rename that another program prevents for a moment is tried again, a real error is not", () => {
    fs.writeFileSync(place("a"), "");
    let left = 3, tries = 0;
    const failing = (name) => ({ renameSync: (from, to) => { tries++; if (left-- > 0) throw code(name); fs.renameSync(from, to); } });
    systemWith("win32", failing("EBUSY")).rename(place("a"), place("b"));
    equal([fs.existsSync(place("b")), tries], [true, 4]);
    for (const [platform, name] of [["win32", "ENOENT"], ["linux", "EPERM"]]) {
      [left, tries] = [1, 0];
      equal(errorOf(() => systemWith(platform, failing(name)).rename(place("b"), place("c"))), name);
      equal(tries, 1, "tries");
    }
    [left, tries] = [1000, 0];
    equal(errorOf(() => systemWith("win32", failing("EACCES")).rename(place("b"), place("c"))), "EACCES");
    check(tries < 50, `${tries} tries`);
  });
  test("Windows syncs no directories, and files that were opened for reading by another descriptor", () => {
    fs.writeFileSync(place("synced"), "x");
    const opened = [], system = systemWith("win32", { openSync: (p, flags, mode) => { opened.push(flags); return fs.openSync(p, flags, mode); } });
    system.sync(system.openAt(AT_FDCWD, scratch, O_DIRECTORY, 0));
    equal(opened, []);
    system.sync(system.openAt(AT_FDCWD, place("synced"), O_RDONLY, 0));
    equal(opened, [0, "r+"]);
  });
  test("calls relative to a directory notice that another one took its path", () => {
    fs.mkdirSync(place("one"));
    fs.writeFileSync(place("one/file"), "");
    const system = systemWith("linux"), directory = system.openAt(AT_FDCWD, place("one"), O_DIRECTORY, 0);
    equal(system.at(directory, "file"), place("one/file"));
    fs.renameSync(place("one"), place("moved"));
    equal(errorOf(() => system.at(directory, "file")), "ENOENT");
    fs.mkdirSync(place("one"));
    equal(errorOf(() => system.at(directory, "file")), "ESTALE");
  });
  test("opening refuses what Linux refuses", () => {
    fs.symlinkSync("one", place("link"));
    const system = systemWith("linux"), refusal = (name, flags) => errorOf(() => system.openAt(AT_FDCWD, place(name), flags, 0));
    equal([refusal("link", O_NOFOLLOW), refusal("link", O_NOFOLLOW | O_DIRECTORY), refusal("b", O_DIRECTORY), refusal("moved", O_WRONLY), refusal("none", O_RDONLY), refusal("b/x", O_RDONLY)],
      ["ELOOP", "ENOTDIR", "ENOTDIR", "EISDIR", "ENOENT", "ENOTDIR"]);
    equal(errorOf(() => system.openAt(AT_FDCWD, "", O_RDONLY, 0)), "ENOENT");
    equal(errorOf(() => system.file(77)), "EBADF");
  });
  test("errors have the numbers of the C library", () => {
    equal(["ENOENT", "EACCES", "EEXIST", "ENOSPC", "ENOTEMPTY", "EXDEV"].map((name) => numberOf(code(name))), [44, 2, 20, 51, 55, 75]);
    equal(numberOf(code("EWHATEVER")), 29);
    equal(errorOf(() => numberOf(new TypeError("a mistake here"))), undefined, "mistakes of this package are not errors of files:");
  });
}

async function testLocks(scratch) {
  const file = path.join(scratch, "locked");
  fs.writeFileSync(file, "");
  const seen = "the native program sees locks, of files and directories";
  if (process.platform !== "linux") skip(seen, "flock is used on Linux");
  else test(seen, () => {
    const lock = locker("linux"), isFree = (name) => spawnSync("flock", ["-n", name, "true"]).status === 0;
    for (const [name, flags] of [[file, O_RDONLY], [scratch, O_DIRECTORY]]) {
      const [one, two] = [0, 0].map(() => systemWith("linux", {}, { lock }));
      const [first, second] = [one, two].map((system) => system.openAt(AT_FDCWD, name, flags, 0));
      equal(one.imports().tessera.lock(first), 0);
      equal(isFree(name), false, "while it is locked, flock");
      equal(two.imports().tessera.lock(second), 6, "EAGAIN");
      one.close(first);
      equal(isFree(name), true, "after it is closed, flock");
      equal(two.imports().tessera.lock(second), 0);
      two.close(second);
    }
    equal(systemWith("linux").imports().tessera.lock(5), 8, "EBADF");
  });
  await test("a name is locked on Windows as long as one process listens to it", async () => {
    equal(pipeOf("x"), "\\\\.\\pipe\\x");
    const addressOf = (name) => path.join(scratch, name), [one, two] = [lockServer(addressOf), lockServer(addressOf)];
    equal([await one("lock", "n"), await two("lock", "n"), await two("lock", "m")], [true, false, true]);
    await one("unlock", "n");
    equal(await two("lock", "n"), true, "after it is unlocked");
    await Promise.all([two("unlock", "n"), two("unlock", "m")]);
  });
  test("on Windows, a lock is of the file and not of its name", () => {
    const asked = [], lock = locker("win32", (what, name) => asked.push([what, name]) && asked.length < 3);
    fs.linkSync(file, `${file}-too`);
    const system = systemWith("win32", {}, { lock }), [a, b] = [file, `${file}-too`].map((name) => system.openAt(AT_FDCWD, name, O_RDONLY, 0));
    equal([system.imports().tessera.lock(a), asked[0][0]], [0, "lock"]);
    system.close(a);
    equal(asked[1], ["unlock", asked[0][1]]);
    equal(system.imports().tessera.lock(b), 6);
    equal(asked[2], asked[0]);
  });
}

export async function testProgramUnits() {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-units-"));
  testPaths();
  testFiles(scratch);
  await testLocks(scratch);
  fs.rmSync(scratch, { recursive: true });
}
