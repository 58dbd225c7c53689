#!/usr/bin/env bash
# The npm package: what `npm pack` gives is installed into an empty project, where the README's examples for Node run as
# they stand, under this Node and under Node 18. tests/web/package.mjs does the rest: types, a bundler, a browser's worker.
# Usage: package.sh [PROJECT]   PROJECT: only make that directory, with the package installed
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
project=${1:-$(mktemp -d)}
[ $# -gt 0 ] || trap 'rm -rf "$project"' EXIT
mkdir -p "$project"
# Packing copies the modules next to the sources and removes them again, so one packs at a time.
archive=$(cd "$root/wasm" && flock "$root/build" npm pack --silent --pack-destination "$project" | tail -n 1)
cd "$project"
echo '{"type": "module", "private": true}' >package.json
npm install --silent --no-audit --no-fund --offline "./$archive" >&2
[ $# -eq 0 ] || exit 0

# Example N (from 1) of the README.
example() { awk -v want="$1" '/^```js/ { n++; on = n == want; next } /^```/ { on = 0 } on' "$root/wasm/README.md"; }
example 1 >list.mjs
example 3 >tally.mjs
example 4 >optimizer.mjs
example 5 >convert.mjs
example 6 >load.mjs
grep -q 'sinkOf' convert.mjs && grep -q 'diff.step' load.mjs || { echo "the README has other examples"; exit 1; }
grep -q 'checkpoint.inspect' list.mjs && grep -q 'tally.step' tally.mjs && grep -q 'optimizer("flatten"' optimizer.mjs || { echo "the README has other examples"; exit 1; }
echo 'import("tessera-checkpoint/node").then(async ({ filesOf, load }) => { const { files, options } = filesOf("checkpoint/"); console.log((await load()).open(files, options).inspect().format); });' >common.cjs
cp -r "$root/samples/checkpoints/dcp_fsdp2" checkpoint
node - <<'JS' # a file of one tensor, written field by field
const header = Buffer.from(JSON.stringify({ "model.embed.weight": { dtype: "F32", shape: [4], data_offsets: [0, 16] } })), size = Buffer.alloc(8);
size.writeBigUInt64LE(BigInt(header.length));
const fs = require("fs"), linear = { class: "Linear", wrapper: "none", parameters: { weight: { shape: [2], dtype: "float32", requires_grad: true } }, buffers: {}, extra_state: false, children: {} };
fs.writeFileSync("modules.json", JSON.stringify({ schema: "tessera.modules/1", root: { class: "DDP", wrapper: "ddp", parameters: {}, buffers: {}, extra_state: false, children: { module: linear } } }));
fs.writeFileSync("model.safetensors", Buffer.concat([size, header, Buffer.from(new Float32Array([-1, 0, 2, NaN]).buffer)]));
JS

old=$root/.local/node18/node_modules/node/bin/node
[ -x "$old" ] || npm install --silent --no-audit --no-fund --prefix "$root/.local/node18" node@18 >&2
"$old" --version | grep -q '^v18\.' || { echo "$old is not Node 18"; exit 1; }
for node in node "$old"; do
    "$node" list.mjs >list.txt
    grep -q 'float32 \[ [0-9]' list.txt || { echo "$node list.mjs said: $(cat list.txt)"; exit 1; }
    said=$("$node" tally.mjs | head -n 1)
    [[ $said == "-1 2 0.333"*" 1 ["* ]] || { echo "$node tally.mjs said: $said"; exit 1; }
    "$node" optimizer.mjs >optimizer.txt
    said=$("$node" common.cjs)
    [ "$said" = dcp ] || { echo "$node common.cjs said: $said"; exit 1; }
    rm -f model-bf16.safetensors
    "$node" convert.mjs >convert.txt 2>/dev/null
    grep -q '^[1-9][0-9]* tensors, [0-9]* warnings' convert.txt && [ -s model-bf16.safetensors ] || { echo "$node convert.mjs said: $(cat convert.txt)"; exit 1; }
    "$node" load.mjs >load.txt
    grep -q '^layout/missing-entry ' load.txt && grep -q '^false [1-9]' load.txt || { echo "$node load.mjs said: $(cat load.txt)"; exit 1; }
    grep -q "^module.weight -> weight DistributedDataParallel" optimizer.txt && grep -q "^state.emb.weight.exp_avg float32" optimizer.txt || { echo "$node optimizer.mjs said: $(cat optimizer.txt)"; exit 1; }
done
echo ok
