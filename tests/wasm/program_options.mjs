/** Every option of every command in the command line for Node: it prints and writes what the native program does. The commands are those of
 *  tests/support/option_cases.txt, in whose place Python calls its functions. */
import fs from "node:fs";
import path from "node:path";
import { spawnSync } from "node:child_process";
import { check, test } from "../support/harness.mjs";
import { programOf } from "./program.mjs";

const SHARED = ["--threads", "1", "--io-depth", "2", "--no-progress", "--no-mpi", "--color", "never"];
/** It describes how the program was built. */
const APART = ["doctor"];

function casesOf(root, samples) {
  const text = fs.readFileSync(path.join(root, "tests/support/option_cases.txt"), "utf8");
  const lines = text.replaceAll("{samples}", samples).replaceAll("{golden}", path.join(root, "tests/golden")).split("\n").filter((line) => line && !line.startsWith("#"));
  return { steps: lines.filter((line) => line.startsWith("= ")).map((line) => line.slice(2)), commands: lines.filter((line) => !line.startsWith("= ")).map((line) => line.split(" ")) };
}

/** Makes the files that the commands need. */
function prepare(steps, directory, runNative) {
  const at = (name) => path.resolve(directory, name);
  const run = (words) => {
    const p = runNative(directory, words);
    check(p.status === 0 || p.status === 1, `${words.join(" ")}: ${p.stderr}`);
    return p.stdout;
  };
  for (const step of steps) {
    const [what, first, ...rest] = step.split(" ");
    if (what === "copy") fs.cpSync(at(first), at(rest[0]), { recursive: true, preserveTimestamps: true });
    else if (what === "remove") fs.rmSync(at(first));
    else if (what === "cut") fs.truncateSync(at(first), Number(rest[0]));
    else if (what === "write") fs.writeFileSync(at(first), rest.join(" "));
    else if (what === "native") run([first, ...rest]);
    else if (what === "output") fs.writeFileSync(at(first), run(rest));
    else throw new Error(`an unknown step: ${step}`);
  }
}

export function testProgramOptions(context) {
  const { root, samples } = context, { both, runNative, scratch } = programOf(context);
  const { steps, commands } = casesOf(root, samples);

  test("the cases use every option of every command", () => {
    const table = JSON.parse(runNative(scratch, ["completions", "json"]).stdout);
    for (const { name, options } of table.commands.filter((command) => command.name !== "view")) {
      const words = new Set(commands.filter(([command]) => command === name).flat());
      const lacking = options.filter((option) => !words.has(`--${option.name}`) && !(option.name === "output" && words.has("-o"))).map((option) => option.name);
      check(lacking.length === 0, `add to tests/support/option_cases.txt: ${name} ${lacking.join(", ")}`);
    }
  });
  test("every option of every command does what it does in the native program", () => {
    const seen = new Set();
    let prepared;
    both(commands.filter(([name]) => !APART.includes(name)).map((words) => {
      const isFirst = !seen.has(words[0]);
      seen.add(words[0]);
      return isFirst ? [...words, ...SHARED] : words;
    }), (directory) => {
      if (prepared) spawnSync("cp", ["-a", `${prepared}/.`, directory]); // a plan knows when its source was written
      else prepare(steps, prepared = directory, runNative);
    });
  });
}
