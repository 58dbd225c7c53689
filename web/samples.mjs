/** Puts the sample checkpoints that the page offers into .samples (which the bundler copies), with their list. */
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const from = path.join(here, "../samples/checkpoints"), to = path.join(here, ".samples");
const OFFERED = [
  ["dcp_tp_fsdp2", "Distributed checkpoint of 4 ranks: tensor parallel × FSDP2, shards on two dimensions"],
  ["dcp_fsdp2", "Distributed checkpoint of 4 ranks: FSDP2 with AdamW state, uneven shards"],
  ["dcp_hsdp", "The same model under HSDP: compare it with dcp_fsdp2"],
  ["broken_dcp_hole", "A part of a tensor was lost; PyTorch loads it without a word"],
  ["broken_dcp_overlap", "Two chunks hold the same elements"],
  ["torch_ranks_tp_fsdp2", "One torch.save file per rank, with DTensors"],
  ["torch_train_state", "A training script's torch.save: model, optimizer, scheduler"],
  ["safetensors_index", "Three safetensors files and their index"],
];

fs.rmSync(to, { recursive: true, force: true });
fs.mkdirSync(to, { recursive: true });
const list = OFFERED.map(([name, title]) => {
  fs.cpSync(path.join(from, name), path.join(to, name), { recursive: true });
  const files = fs.readdirSync(path.join(to, name)).sort().map((file) => ({ name: file, size: fs.statSync(path.join(to, name, file)).size }));
  return { name, title, files };
});
fs.writeFileSync(path.join(to, "samples.json"), JSON.stringify(list));
