#!/usr/bin/env bash
# The npm package: what `npm pack` gives is installed into an empty project, which then lists a sample under Node and,
# where web/ has its tools, type-checks against the declarations.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root/wasm"
archive=$(npm pack --silent --pack-destination "$work" 2>/dev/null | tail -n 1)
mkdir -p "$work/project/node_modules/tessera-checkpoint"
tar -xzf "$work/$archive" -C "$work/project/node_modules/tessera-checkpoint" --strip-components 1
cd "$work/project"
echo '{"type": "module"}' >package.json
cat >list.ts <<'TS'
import fs from "node:fs";
import { Tessera, type Row } from "tessera-checkpoint";
import { filesOf } from "tessera-checkpoint/node";
const tessera = await Tessera.load(fs.readFileSync(new URL(import.meta.resolve("tessera-checkpoint/tessera.wasm"))));
const source = filesOf(process.argv[2] as string);
const checkpoint = tessera.open(source.files, source.options);
const rows: Row[] = checkpoint.outline().rows(0, 3);
const { entries } = JSON.parse(checkpoint.document("inspect")) as { entries: unknown[] };
console.log(`${entries.length} entries, ${rows.length} rows`);
checkpoint.close();
source.close();
TS
sed -e 's/, type Row//; s/: Row\[\]//; s/ as string//; s/ as {[^}]*}//' list.ts >list.mjs
said=$(node list.mjs "$root/samples/checkpoints/safetensors_model")
[[ $said == *" entries, 3 rows" ]] || { echo "the package said: $said"; exit 1; }
if [ -x "$root/web/node_modules/.bin/tsc" ]; then
    printf 'declare module "node:fs";\ndeclare const process: { argv: string[] };\ninterface ImportMeta { resolve(name: string): string }\n' >host.d.ts
    sed -i 's/fs.readFileSync/(fs as { readFileSync(at: URL): ArrayBuffer }).readFileSync/; s/^import fs from/import fs from/' list.ts
    "$root/web/node_modules/.bin/tsc" --noEmit --strict --module nodenext --target es2022 --lib es2022,dom list.ts host.d.ts
fi
echo ok
