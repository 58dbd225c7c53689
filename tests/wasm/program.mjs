/** The command line for Node does what the native program does: for lists of commands, each in a directory of its own, the output, the messages,
 *  the exit status and every byte of every file are the same. The program is run as npm installs it.
 *  Usage: program.mjs [--tessera PROGRAM] [--node NODE] [NAME]   NAME: run only the tests whose names match this regular expression */
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { spawn, spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { check, report, same, test, testAsync } from "./harness.mjs";
import { testUnits } from "./program_units.mjs";

const root = fileURLToPath(new URL("../..", import.meta.url)), samples = path.join(root, "samples/checkpoints");
const words = process.argv.slice(2), option = (name) => (words.includes(name) ? words.splice(words.indexOf(name), 2)[1] : undefined);
const native = path.resolve(option("--tessera") ?? path.join(root, "build/release/bin/tessera"));
const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "tessera-npx-")), project = path.join(scratch, "project");
process.on("exit", () => fs.rmSync(scratch, { recursive: true, force: true }));

const packed = spawnSync(path.join(root, "tests/wasm/package.sh"), [project], { encoding: "utf8" });
if (packed.status !== 0) throw new Error(packed.stdout + packed.stderr);
const installed = path.join(project, "node_modules/.bin/tessera-checkpoint"), old = path.join(root, ".local/node18/node_modules/node/bin/node");
if (!fs.existsSync(old)) spawnSync("npm", ["install", "--silent", "--no-audit", "--no-fund", "--prefix", path.join(root, ".local/node18"), "node@18"]);
const node = option("--node") ?? process.execPath, only = words[0] ?? "";

const runNative = (cwd, args, options) => spawnSync(native, args, { cwd, encoding: "utf8", maxBuffer: 1 << 28, ...options });
const runProgram = (cwd, args, options) => spawnSync(node, [installed, ...args], { cwd, encoding: "utf8", maxBuffer: 1 << 28, ...options });
const isWanted = (name) => new RegExp(only).test(name), named = (name, body) => (isWanted(name) ? test(name, body) : undefined), namedAsync = (name, body) => (isWanted(name) ? testAsync(name, body) : undefined);

/** A text without what differs from run to run: times, rates, and the numbers of processes and random tags in hidden names. */
const steady = (text) => text.replace(/\b\d+(\.\d+)? s\b(, [\d.]+ [KMGT]?i?B\/s)?/g, "TIME").replace(/\.tessera-w?[0-9a-f]+/g, ".tessera-TAG");

/** Each name below a directory, with its kind, mode and bytes. */
function tree(directory, prefix = "") {
  return fs.readdirSync(directory, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1)).flatMap((entry) => {
    const at = path.join(directory, entry.name), name = prefix + entry.name, mode = (fs.lstatSync(at).mode & 0o7777).toString(8);
    if (entry.isSymbolicLink()) return [`${name} -> ${fs.readlinkSync(at)}`];
    return entry.isDirectory() ? [`${name}/ ${mode}`, ...tree(at, `${name}/`)] : [`${name} ${mode} ${fs.readFileSync(at).toString("base64")}`];
  });
}

let directories = 0;
/** Runs the commands with both programs, each in its own directory that `prepare` fills. `{samples}` is where the samples are. */
function both(commands, prepare = () => {}) {
  const [a, b] = ["native", "program"].map((side) => {
    const directory = path.join(scratch, `${directories}`, side);
    fs.mkdirSync(directory, { recursive: true });
    prepare(directory);
    return directory;
  });
  directories++;
  for (const command of commands) {
    if (typeof command === "function") {
      [a, b].forEach(command);
      continue;
    }
    const args = command.map((word) => word.replaceAll("{samples}", samples)), what = args.join(" ");
    const [x, y] = [runNative(a, args), runProgram(b, args)];
    check(x.error === undefined && y.error === undefined, `${what}: ${x.error ?? y.error}`);
    same(steady(x.stderr), steady(y.stderr), `messages of ${what}`);
    same(steady(x.stdout), steady(y.stdout), `output of ${what}`);
    check(x.status === y.status, `${what} exits with ${x.status} natively, with ${y.status} in Node`);
  }
  const [x, y] = [tree(a), tree(b)];
  const differing = [...x.filter((line) => !y.includes(line)), ...y.filter((line) => !x.includes(line))].map((line) => line.slice(0, 100));
  check(differing.length === 0, `the files of ${commands.filter(Array.isArray).at(-1).join(" ")} differ: ${differing.join("; ")}`);
}

const at = (name) => `{samples}/${name}`;
const keep = (name, as = name) => (directory) => fs.cpSync(path.join(samples, name), path.join(directory, as), { recursive: true });
const touch = (directory, names, seconds) => names.forEach((name) => fs.utimesSync(path.join(directory, name), seconds, seconds));

// ---- every sample ----

for (const name of fs.readdirSync(samples).filter((entry) => !/\.expect\.json$|README/.test(entry))) {
  named(`sample ${name}`, () => both([["validate", "--deep", at(name), "--format", "json"], ...(name.startsWith("broken") ? [] : [["inspect", at(name), "--json"]])]));
}

// ---- every command ----

for (const [from, forms] of [["dcp_fsdp2", ["dcp", "safetensors", "torch"]], ["safetensors_model", ["dcp", "torch", "safetensors"]], ["torch_views", ["dcp", "safetensors", "torch"]]])
  for (const to of forms)
    named(`convert ${from} to ${to}`, () => both([["convert", at(from), "out", "--to", to, "--objects", to === "safetensors" ? "sidecar" : "keep"], ["validate", "--deep", "out"], ["diff", at(from), "out", "--values"],
      ["convert", at(from), "out", "--to", to], ["convert", at(from), "out", "--to", to, "--objects", "drop", "--overwrite"], ["convert", at(from), "out", "--to", to, "--objects", "drop", "--overwrite", "--resume"]]));
named("convert options", () => both([["convert", at("dcp_fsdp2"), "shards/", "--max-shard-size", "1KB", "--objects", "drop", "--dtype", "bfloat16"], ["convert", at("dcp_fsdp2"), "a.pt", "--rename", "model.=m.", "--include", "model.**", "--no-checksums"],
  ["convert", at("dcp_fsdp2"), "x", "--dry-run", "--to", "torch"], ["convert", at("dcp_fsdp2"), "x.xyz"], ["convert", at("dcp_fsdp2"), "-", "--to", "torch"], ["inspect", "shards", "--hash", "sha256", "--stats", "--json"], ["inspect", "a.pt", "--tree", "--hash", "xxh3"]]));
named("reshard, plan and exec", () => both([["reshard", at("dcp_fsdp2"), "three", "--mesh", "dp=3", "--placements", "shard(0)"], ["validate", "--deep", "three"], ["diff", at("dcp_fsdp2"), "three", "--values", "--json"],
  ["plan", at("dcp_fsdp2"), "--mesh", "dp=2,tp=2", "--placements", "shard(0),replicate", "-o", "none"], ["plan", at("dcp_fsdp2"), "--mesh", "dp=2,tp=2", "--placements", "shard(0),replicate", "--items"],
  (directory) => fs.writeFileSync(path.join(directory, "plan.json"), runNative(directory, ["plan", path.join(samples, "dcp_fsdp2"), "--mesh", "dp=5", "--placements", "shard(0)", "--json"]).stdout),
  ["exec", "plan.json", "five"], ["exec", "plan.json", "shares", "--share", "1/2"], ["exec", "plan.json", "shares", "--share", "2/2"], ["exec", "plan.json", "shares", "--finish"], ["diff", "five", "shares", "--values", "--layout"], ["exec", "plan.json", "five"]]));
named("diff and its reports", () => both([["diff", at("dcp_fsdp2"), at("dcp_ddp")], ["diff", at("dcp_fsdp2"), at("dcp_ddp"), "--json"], ["diff", at("dcp_fsdp2"), at("dcp_ddp"), "--format", "sarif"]]));
named("documents", () => both([["layout", at("dcp_fsdp2"), "-o", "layout.json"], ["validate", at("dcp_fsdp2"), "--layout", "layout.json"], ["validate", at("dcp_ddp"), "--layout", "layout.json", "--format", "junit"], ["manifest", at("dcp_fsdp2"), "-o", "manifest.json"],
  ["verify", at("dcp_fsdp2"), "manifest.json"], ["verify", at("dcp_ddp"), "manifest.json"], ["validate", at("broken_dcp_hole"), "--format", "github"], ["validate", "--list-rules"]]));
named("values", () => both([["get", at("dcp_fsdp2"), "model.emb.weight[0:2,:3]"], ["get", at("dcp_fsdp2"), "model.emb.weight", "-o", "emb.npy"], ["get", at("dcp_fsdp2"), "model.emb.weight[1]", "-o", "row.bin"], ["get", at("dcp_fsdp2"), "model.nothing"]]));
named("repair", () => both([["repair", "ckpt", "found.metadata", "--like", at("dcp_fsdp2")], ["repair", "ckpt", "bare.metadata"], ["repair", at("broken_safetensors_trailing_bytes"), "fixed.safetensors"]],
  (directory) => { keep("dcp_fsdp2", "ckpt")(directory); fs.rmSync(path.join(directory, "ckpt/.metadata")); }));
named("merge", () => both([["merge", "sum.safetensors", at("dcp_fsdp2"), at("dcp_fsdp2"), "--include", "model.**"], ["merge", "sum.safetensors", at("dcp_fsdp2"), at("dcp_fsdp2"), "--include", "model.**", "--method", "linear", "--overwrite"], ["inspect", "sum.safetensors", "--hash", "sha256"]]));
named("optim", () => both([["convert", at("dcp_fsdp2"), "whole.pt"], ["optim", "flatten", "whole.pt", "flat.pt", "--at", "optim"], ["optim", "to-fqn", "whole.pt", "named.pt", "--at", "optim"], ["optim", "flatten", "whole.pt", "flat-dcp", "--to", "dcp", "--at", "optim"]]));
named("names and maps", () => both([["fqn", "module._orig_mod.layer.weight", "a._fsdp_wrapped_module.b"], ["map", "list"], ["map", "show", "torchtitan-llama3"], ["map", "suggest", at("dcp_fsdp2"), at("dcp_ddp")], ["inspect", at("dcp_fsdp2"), "--include", "model.*.weight"]]));
named("copies", () => both([["cp", at("dcp_fsdp2"), "copy"], ["cp", at("dcp_fsdp2"), "copy"], ["validate", "--deep", "copy"]]));
named("what needs an exchange of two directories is refused, and nothing is changed", () => {
  const directory = path.join(scratch, "exchange");
  keep("dcp_fsdp2", "copy")(directory);
  const before = tree(directory).join("\n"), p = runProgram(directory, ["cp", path.join(samples, "dcp_ddp"), "copy", "--overwrite"]);
  check(p.status === 2 && /cannot exchange two directories; remove it instead of passing --overwrite/.test(p.stderr), `${p.status} ${p.stderr}`);
  same(before, tree(directory).join("\n"), "the files");
});
named("latest and prune", () => both([["latest", "run"], ["latest", "run", "--deep", "--json"], ["prune", "run", "--keep", "1", "--dry-run"], ["prune", "run", "--keep", "1"], ["prune", "run", "--keep", "0"], ["inspect", "run", "--step", "latest"]], (directory) => {
  for (const step of [100, 200, 300]) keep("dcp_fsdp2", `run/step-${step}`)(directory);
  fs.rmSync(path.join(directory, "run/step-300/.metadata"));
  const files = fs.readdirSync(path.join(directory, "run"), { recursive: true }).map((name) => path.join("run", name));
  touch(directory, [...files, "run"].reverse(), 1.7e9);
}));
named("help, completions and mistakes", () => both([["help"], [], ["help", "convert"], ["convert", "--help"], ["help", "formats"], ["completions", "bash"], ["completions", "json"], ["completions", "man"], ["explain", "layout/hole"], ["explain", "layout/hol"], ["inspec"], ["inspect"], ["inspect", "--jsn", "x"],
  ["inspect", "missing"], ["inspect", "missing/deep"], ["validate", "--rule", "x"], ["--version-of"]]));

named("every command and option of the table is accepted or refused as by the native program", () => {
  const { commands } = JSON.parse(runNative(scratch, ["completions", "json"]).stdout);
  check(commands.length > 20, `${commands.length} commands`);
  for (const { name } of commands) {
    const [x, y] = [runNative, runProgram].map((run) => run(scratch, [name, "--help"]));
    same(x.stdout, y.stdout, `help of ${name}`);
    check(x.status === 0 && y.status === 0, `${name} --help exits with ${x.status} and ${y.status}`);
  }
  const cases = commands.flatMap(({ name, options }) => options.map((option) => [name, `--${option.name}`]));
  const line = cases.map(([name, option]) => [name, "missing-a", "missing-b", option, "1"]);
  for (const args of line.filter((_, i) => i % 7 === 0)) { // each start takes a while; the table is one, and so is its parser
    const [x, y] = [runNative, runProgram].map((run) => run(scratch, args));
    if (args[0] === "view") continue;
    same(x.stderr, y.stderr, args.join(" "));
    check(x.status === y.status, `${args.join(" ")} exits with ${x.status} and ${y.status}`);
  }
});

named("what needs servers, stores, threads or ranks is refused with status 2", () => {
  const ckpt = path.join(samples, "dcp_fsdp2"), refused = (args, text, env = {}) => {
    const p = runProgram(scratch, args, { env: { ...process.env, ...env } });
    check(p.status === 2 && text.test(p.stderr) && p.stdout === "", `${args.join(" ")}: ${p.status} ${p.stderr}`);
  };
  refused(["view", ckpt], /needs a server/);
  refused(["inspect", "s3://bucket/run"], /no network/);
  refused(["convert", ckpt, "gs://bucket/run", "--to", "dcp"], /no network|object stores/);
  refused(["inspect", "https://127.0.0.1:1/x"], /no network/);
  refused(["validate", "--deep", ckpt, "--threads", "2"], /one thread/);
  refused(["convert", ckpt, "out", "--to", "torch"], /2 processes were started/, { OMPI_COMM_WORLD_SIZE: "2", OMPI_COMM_WORLD_RANK: "0" });
  check(!fs.existsSync(path.join(scratch, "out")), "something was written");
});

// ---- files and names ----

named("names in other scripts, spaces, links and special files", () => both([["validate", "--deep", "模型 ü🎉/step 1"], ["convert", "模型 ü🎉/step 1", "ausgabe ß.safetensors", "--objects", "drop"], ["inspect", "link"], ["convert", "link", "linked-out/", "--to", "torch"], ["validate", "--deep", "holder"], ["cp", "link", "copied"],
  ["convert", "link", "to-link", "--to", "dcp"], ["inspect", "dangling"], ["inspect", "loop"], ["convert", "link", "target.safetensors", "--objects", "drop", "--overwrite"]], (directory) => {
  keep("dcp_fsdp2", "模型 ü🎉/step 1")(directory);
  keep("dcp_fsdp2", "holder")(directory);
  fs.symlinkSync("模型 ü🎉/step 1", path.join(directory, "link"));
  fs.symlinkSync("nowhere", path.join(directory, "dangling"));
  fs.symlinkSync("loop", path.join(directory, "loop"));
  fs.symlinkSync("nowhere", path.join(directory, "holder/extra"));
  fs.mkdirSync(path.join(directory, "real"));
  fs.symlinkSync("real", path.join(directory, "to-link"));
  fs.writeFileSync(path.join(directory, "kept.safetensors"), "mine");
  fs.symlinkSync("kept.safetensors", path.join(directory, "target.safetensors"));
}));
named("overwriting keeps files that are not of the checkpoint", () => both([["convert", at("dcp_fsdp2"), "out", "--to", "dcp"], ["convert", at("dcp_ddp"), "out", "--to", "dcp"], ["convert", at("dcp_ddp"), "out", "--to", "dcp", "--overwrite"],
  ["convert", at("dcp_ddp"), "file", "--to", "torch", "--overwrite"]], (directory) => {
  fs.mkdirSync(path.join(directory, "out"));
  fs.writeFileSync(path.join(directory, "out/notes.txt"), "mine");
  fs.writeFileSync(path.join(directory, "file"), "mine", { mode: 0o640 });
}));
if (process.getuid?.() !== 0) named("directories that may not be read or written", () => readOnly());
else console.log("skipped as root, who may write everywhere: directories that may not be read or written; run as nobody instead");
function readOnly() {
  both([["convert", at("dcp_fsdp2"), "locked/out", "--to", "dcp"], ["inspect", "hidden"], ["validate", "half"]], (directory) => {
    fs.mkdirSync(path.join(directory, "locked"), { mode: 0o555 });
    fs.mkdirSync(path.join(directory, "hidden"), { mode: 0o000 });
    keep("dcp_fsdp2", "half")(directory);
  });
}

named("files beyond 2 GiB, written and read in 400 MB of memory", () => {
  const directory = path.join(scratch, "large"), count = 2 ** 31 + 2 ** 27, header = Buffer.from(JSON.stringify({ big: { dtype: "U8", shape: [count], data_offsets: [0, count] } }).padEnd(120));
  fs.mkdirSync(directory);
  const size = Buffer.alloc(8), file = fs.openSync(path.join(directory, "big.safetensors"), "w");
  size.writeBigUInt64LE(BigInt(header.length));
  fs.writeSync(file, Buffer.concat([size, header]));
  fs.writeSync(file, Buffer.from("the end"), 0, 7, header.length + 8 + count - 7);
  fs.closeSync(file);
  const measured = (args) => {
    const p = spawnSync("python3", ["-c", "import resource,subprocess,sys\ns=subprocess.run(sys.argv[1:]).returncode\nprint('RSS', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\nsys.exit(s)", node, installed, ...args], { cwd: directory, encoding: "utf8" });
    const memory = Number(/RSS (\d+)/.exec(p.stderr)?.[1]) * 1024;
    check(p.status === 0, `${args.join(" ")}: ${p.status} ${p.stderr}`);
    check(memory > 0 && memory < 400e6, `${args.join(" ")} takes ${memory} bytes of memory`);
    return p;
  };
  measured(["convert", "big.safetensors", "big.pt"]);
  measured(["validate", "--deep", "big.pt"]);
  const x = runNative(directory, ["get", "big.pt", `big[${count - 7}:]`, "-o", "end.bin"]);
  check(x.status === 0 && fs.readFileSync(path.join(directory, "end.bin"), "utf8") === "the end", `the native program reads ${x.stderr}`);
  const y = runProgram(directory, ["diff", "big.pt", "big.safetensors"]);
  check(y.status === 0, y.stdout + y.stderr);
  fs.rmSync(directory, { recursive: true });
});

// ---- signals ----

/** Starts a conversion whose source is a pipe that never ends the data, so that the program is in the middle for as long as the test wants. */
async function interrupted(signal, args, expected) {
  const directory = fs.mkdtempSync(path.join(scratch, "signal-"));
  fs.writeFileSync(path.join(directory, "kept"), "mine");
  const count = 2 ** 31, header = Buffer.from(JSON.stringify({ big: { dtype: "U8", shape: [count], data_offsets: [0, count] } }).padEnd(120)), size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(header.length));
  fs.writeFileSync(path.join(directory, "big.safetensors"), Buffer.concat([size, header]));
  fs.truncateSync(path.join(directory, "big.safetensors"), 8 + header.length + count);
  const child = spawn(node, [installed, ...args], { cwd: directory, stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  child.stderr.on("data", (text) => (said += text));
  const ended = new Promise((resolve) => child.on("exit", (status, by) => resolve({ status, by })));
  let sent = false; // once the unfinished output is there
  const watcher = setInterval(() => {
    if (sent || !fs.readdirSync(directory).some((name) => name.includes(".tessera-"))) return;
    sent = child.kill(signal);
  }, 5);
  const { status, by } = await ended;
  clearInterval(watcher);
  check(sent && by === signal, `it ends with ${status} by ${by}: ${said}`);
  check(expected.test(said), said);
  return { directory, names: fs.readdirSync(directory).sort() };
}

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  await namedAsync(`a signal ends the program: ${signal}`, async () => {
    const { names } = await interrupted(signal, ["convert", "big.safetensors", "out.pt"], new RegExp(`tessera: ended by ${signal}; the unfinished output was removed`));
    same("big.safetensors kept", names.join(" "), "what is left");
  });
}
await namedAsync("an interrupted run can be resumed", async () => {
  const { directory } = await interrupted("SIGINT", ["convert", "big.safetensors", "out.pt", "--resume"], /ended by SIGINT; the finished work was kept/);
  const p = runProgram(directory, ["convert", "big.safetensors", "out.pt", "--resume"]);
  check(p.status === 0, p.stderr);
  same("big.safetensors kept out.pt", fs.readdirSync(directory).sort().join(" "), "what is left");
});

named("a closed pipe ends the program by SIGPIPE", () => {
  const p = spawnSync("bash", ["-c", `"$0" "$1" completions json | head -c 10 >/dev/null; echo \${PIPESTATUS[0]}`, node, installed], { encoding: "utf8" });
  check(p.stdout.trim() === "141" && p.stderr === "", p.stdout + p.stderr);
});

named("Node 18 runs it", () => {
  const p = spawnSync(old, [installed, "validate", "--deep", path.join(samples, "dcp_fsdp2")], { encoding: "utf8" });
  const q = runNative(scratch, ["validate", "--deep", path.join(samples, "dcp_fsdp2")]);
  same(q.stdout, p.stdout, "output under Node 18");
  check(p.status === 0 && p.stderr === "", p.stderr);
});

await testUnits();
report();
