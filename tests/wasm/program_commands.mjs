/** The command line for Node does what the native program does: for lists of commands, each in a directory of its own, the output, the
 *  messages, the exit status and every byte of every file are the same. */
import fs from "node:fs";
import path from "node:path";
import { check, same, test } from "../support/harness.mjs";
import { at, programOf, tree } from "./program.mjs";

const touch = (directory, names, seconds) => names.forEach((name) => fs.utimesSync(path.join(directory, name), seconds, seconds));

export function testProgramCommands(context) {
  const { samples } = context, { both, keep, runNative, runProgram, scratch } = programOf(context);

  for (const name of fs.readdirSync(samples).filter((entry) => !/\.expect\.json$|README/.test(entry))) {
    test(`sample ${name}`, () => both([["validate", "--deep", at(name), "--format", "json"], ...(name.startsWith("broken") ? [] : [["inspect", at(name), "--json"]])]));
  }

  for (const [from, forms] of [["dcp_fsdp2", ["dcp", "safetensors", "torch"]], ["safetensors_model", ["dcp", "torch", "safetensors"]], ["torch_views", ["dcp", "safetensors", "torch"]]])
    for (const to of forms)
      test(`convert ${from} to ${to}`, () => both([["convert", at(from), "out", "--to", to, "--objects", to === "safetensors" ? "sidecar" : "keep"], ["validate", "--deep", "out"], ["diff", at(from), "out", "--values"],
        ["convert", at(from), "out", "--to", to], ["convert", at(from), "out", "--to", to, "--objects", "drop", "--overwrite"], ["convert", at(from), "out", "--to", to, "--objects", "drop", "--overwrite", "--resume"]]));
  test("convert options", () => both([["convert", at("dcp_fsdp2"), "shards/", "--max-shard-size", "1KB", "--objects", "drop", "--dtype", "bfloat16"], ["convert", at("dcp_fsdp2"), "a.pt", "--rename", "model.=m.", "--include", "model.**", "--no-checksums"],
    ["convert", at("dcp_fsdp2"), "x", "--dry-run", "--to", "torch"], ["convert", at("dcp_fsdp2"), "x.xyz"], ["convert", at("dcp_fsdp2"), "-", "--to", "torch"], ["inspect", "shards", "--hash", "sha256", "--stats", "--json"], ["inspect", "a.pt", "--tree", "--hash", "xxh3"]]));
  test("reshard, plan and exec", () => both([["reshard", at("dcp_fsdp2"), "three", "--mesh", "dp=3", "--placements", "shard(0)"], ["validate", "--deep", "three"], ["diff", at("dcp_fsdp2"), "three", "--values", "--json"],
    ["plan", at("dcp_fsdp2"), "--mesh", "dp=2,tp=2", "--placements", "shard(0),replicate", "-o", "none"], ["plan", at("dcp_fsdp2"), "--mesh", "dp=2,tp=2", "--placements", "shard(0),replicate", "--items"],
    (directory) => fs.writeFileSync(path.join(directory, "plan.json"), runNative(directory, ["plan", path.join(samples, "dcp_fsdp2"), "--mesh", "dp=5", "--placements", "shard(0)", "--json"]).stdout),
    ["exec", "plan.json", "five"], ["exec", "plan.json", "shares", "--share", "1/2"], ["exec", "plan.json", "shares", "--share", "2/2"], ["exec", "plan.json", "shares", "--finish"], ["diff", "five", "shares", "--values", "--layout"], ["exec", "plan.json", "five"]]));
  test("diff and its reports", () => both([["diff", at("dcp_fsdp2"), at("dcp_ddp")], ["diff", at("dcp_fsdp2"), at("dcp_ddp"), "--json"], ["diff", at("dcp_fsdp2"), at("dcp_ddp"), "--format", "sarif"]]));
  test("documents", () => both([["layout", at("dcp_fsdp2"), "-o", "layout.json"], ["validate", at("dcp_fsdp2"), "--layout", "layout.json"], ["validate", at("dcp_ddp"), "--layout", "layout.json", "--format", "junit"], ["manifest", at("dcp_fsdp2"), "-o", "manifest.json"],
    ["verify", at("dcp_fsdp2"), "manifest.json"], ["verify", at("dcp_ddp"), "manifest.json"], ["validate", at("broken_dcp_hole"), "--format", "github"], ["validate", "--list-rules"]]));
  test("values", () => both([["get", at("dcp_fsdp2"), "model.emb.weight[0:2,:3]"], ["get", at("dcp_fsdp2"), "model.emb.weight", "-o", "emb.npy"], ["get", at("dcp_fsdp2"), "model.emb.weight[1]", "-o", "row.bin"], ["get", at("dcp_fsdp2"), "model.nothing"]]));
  test("repair", () => both([["repair", "ckpt", "found.metadata", "--like", at("dcp_fsdp2")], ["repair", "ckpt", "bare.metadata"], ["repair", at("broken_safetensors_trailing_bytes"), "fixed.safetensors"]],
    (directory) => { keep("dcp_fsdp2", "ckpt")(directory); fs.rmSync(path.join(directory, "ckpt/.metadata")); }));
  test("merge", () => both([["merge", "sum.safetensors", at("dcp_fsdp2"), at("dcp_fsdp2"), "--include", "model.**"], ["merge", "sum.safetensors", at("dcp_fsdp2"), at("dcp_fsdp2"), "--include", "model.**", "--method", "linear", "--overwrite"], ["inspect", "sum.safetensors", "--hash", "sha256"]]));
  test("optim", () => both([["convert", at("dcp_fsdp2"), "whole.pt"], ["optim", "flatten", "whole.pt", "flat.pt", "--at", "optim"], ["optim", "to-fqn", "whole.pt", "named.pt", "--at", "optim"], ["optim", "flatten", "whole.pt", "flat-dcp", "--to", "dcp", "--at", "optim"]]));
  test("names and maps", () => both([["fqn", "module._orig_mod.layer.weight", "a._fsdp_wrapped_module.b"], ["map", "list"], ["map", "show", "torchtitan-llama3"], ["map", "suggest", at("dcp_fsdp2"), at("dcp_ddp")], ["inspect", at("dcp_fsdp2"), "--include", "model.*.weight"]]));
  test("copies", () => both([["cp", at("dcp_fsdp2"), "copy"], ["cp", at("dcp_fsdp2"), "copy"], ["validate", "--deep", "copy"]]));
  test("what needs an exchange of two directories is refused, and nothing is changed", () => {
    const directory = path.join(scratch, "exchange");
    keep("dcp_fsdp2", "copy")(directory);
    const before = tree(directory).join("\n"), p = runProgram(directory, ["cp", path.join(samples, "dcp_ddp"), "copy", "--overwrite"]);
    check(p.status === 2 && /cannot exchange two directories; remove it instead of passing --overwrite/.test(p.stderr), `${p.status} ${p.stderr}`);
    same(before, tree(directory).join("\n"), "the files");
  });
  test("latest and prune", () => both([["latest", "run"], ["latest", "run", "--deep", "--json"], ["prune", "run", "--keep", "1", "--dry-run"], ["prune", "run", "--keep", "1"], ["prune", "run", "--keep", "0"], ["inspect", "run", "--step", "latest"]], (directory) => {
    for (const step of [100, 200, 300]) keep("dcp_fsdp2", `run/step-${step}`)(directory);
    fs.rmSync(path.join(directory, "run/step-300/.metadata"));
    const files = fs.readdirSync(path.join(directory, "run"), { recursive: true }).map((name) => path.join("run", name));
    touch(directory, [...files, "run"].reverse(), 1.7e9);
  }));
  test("help, completions and mistakes", () => both([["help"], [], ["help", "convert"], ["convert", "--help"], ["help", "formats"], ["completions", "bash"], ["completions", "json"], ["completions", "man"], ["explain", "layout/hole"], ["explain", "layout/hol"], ["inspec"], ["inspect"], ["inspect", "--jsn", "x"],
    ["inspect", "missing"], ["inspect", "missing/deep"], ["validate", "--rule", "x"], ["--version-of"]]));

  test("every command and option of the table is accepted or refused as by the native program", () => {
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

  test("what needs servers, stores, threads or ranks is refused with status 2", () => {
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
}
