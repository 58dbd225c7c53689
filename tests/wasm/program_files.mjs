/** Names, links, modes and sizes of files, in the command line for Node and in the native program. */
import fs from "node:fs";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { check, skip, test } from "../support/harness.mjs";
import { at, programOf } from "./program.mjs";

export function testProgramFiles(context) {
  const { both, installed, keep, runNative, runProgram, scratch } = programOf(context), { node } = context;

  test("names in other scripts, spaces, links and special files", () => both([["validate", "--deep", "模型 ü🎉/step 1"], ["convert", "模型 ü🎉/step 1", "ausgabe ß.safetensors", "--objects", "drop"], ["inspect", "link"], ["convert", "link", "linked-out/", "--to", "torch"], ["validate", "--deep", "holder"], ["cp", "link", "copied"],
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
  test("overwriting keeps files that are not of the checkpoint", () => both([["convert", at("dcp_fsdp2"), "out", "--to", "dcp"], ["convert", at("dcp_ddp"), "out", "--to", "dcp"], ["convert", at("dcp_ddp"), "out", "--to", "dcp", "--overwrite"],
    ["convert", at("dcp_ddp"), "file", "--to", "torch", "--overwrite"]], (directory) => {
    fs.mkdirSync(path.join(directory, "out"));
    fs.writeFileSync(path.join(directory, "out/notes.txt"), "mine");
    fs.writeFileSync(path.join(directory, "file"), "mine", { mode: 0o640 });
  }));
  const restricted = "directories that may not be read or written";
  if (process.getuid?.() === 0) skip(restricted, "root may read and write everywhere; run as another user");
  else test(restricted, () => both([["convert", at("dcp_fsdp2"), "locked/out", "--to", "dcp"], ["inspect", "hidden"], ["validate", "half"]], (directory) => {
    fs.mkdirSync(path.join(directory, "locked"), { mode: 0o555 });
    fs.mkdirSync(path.join(directory, "hidden"), { mode: 0o000 });
    keep("dcp_fsdp2", "half")(directory);
  }));

  test("files beyond 2 GiB, written and read in 400 MB of memory", () => {
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
}
