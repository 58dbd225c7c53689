/* The documents that people write by hand. `tessera help formats` and tessera-formats(5) are printed from this table, and tests run its
 * examples. */
#include "cli/program/help.h"

// clang-format off
const cli_format cli_formats[] = {
    {"tessera.target/1",
     "A device mesh, and where each rank's shards of a tensor are. `plan --target` and `reshard --target` read it.",
     {{"mesh", "shape has the sizes of the mesh's dims, the last of which varies fastest, and dim_names their names"},
      {"rules", "the first rule whose match, a GLOB, matches the whole name decides where a tensor is"},
      {"placements", "in a rule: one per dim of the mesh, each replicate, shard(DIM) or strided_shard(DIM, FACTOR)"},
      {"ranks", "in a rule: only these ranks hold the tensor, as for experts; without placements, each holds all of it"},
      {"stage", "in a rule, for pipelines: the ranks at coordinate i of the mesh dim `dim` hold the layers from the "
       "first to before the second number of ranges[i]; {…} in capture is the place of the layer's number, and "
       "names without one continue with the next rule"},
      {"default", "the placements of tensors that no rule matches (default: replicate)"},
      {"strategy", "instead of rules and default: FSDP1's flat parameters, {\"name\": \"fsdp1\", \"units\": […], "
       "\"ignored\": […], \"use_orig_params\": BOOLEAN}; a unit is the GLOB of its parameters, inner units "
       "come first, the rest is the root's, and ignored parameters are whole on every rank"}},
     "target.json\n"
     "{\n"
     "  \"schema\": \"tessera.target/1\",\n"
     "  \"mesh\": {\"shape\": [2, 2], \"dim_names\": [\"dp\", \"tp\"]},\n"
     "  \"rules\": [\n"
     "    {\"match\": \"**.norm.weight\", \"placements\": [\"replicate\", \"replicate\"]},\n"
     "    {\"match\": \"**.attn.weight\", \"placements\": [\"replicate\", \"shard(0)\"]}\n"
     "  ],\n"
     "  \"default\": [\"shard(0)\", \"replicate\"]\n"
     "}\n"
     "tessera reshard ckpt/ ckpt-4/ --target target.json\n"
     "\n"
     "stages.json\n"
     "{\n"
     "  \"schema\": \"tessera.target/1\",\n"
     "  \"mesh\": {\"shape\": [2, 2], \"dim_names\": [\"pp\", \"tp\"]},\n"
     "  \"rules\": [\n"
     "    {\n"
     "      \"match\": \"layers.**.attn.weight\",\n"
     "      \"placements\": [\"replicate\", \"shard(0)\"],\n"
     "      \"stage\": {\"dim\": \"pp\", \"layers\": {\"capture\": \"layers.{n}.\", \"ranges\": [[0, 1], [1, 2]]}}\n"
     "    },\n"
     "    {\"match\": \"embed.weight\", \"ranks\": [0, 1]},\n"
     "    {\"match\": \"head.weight\", \"ranks\": [2, 3]}\n"
     "  ]\n"
     "}\n"
     "tessera plan ckpt/ --target stages.json\n"
     "\n"
     "fsdp1.json\n"
     "{\n"
     "  \"schema\": \"tessera.target/1\",\n"
     "  \"mesh\": {\"shape\": [2]},\n"
     "  \"strategy\": {\"name\": \"fsdp1\", \"units\": [\"layers.0.**\", \"layers.1.**\"], \"use_orig_params\": false}\n"
     "}\n"
     "tessera reshard ckpt/ flat-ranks/ --target fsdp1.json --to torch\n"},
    {"tessera.storage/1",
     "The servers of a parallel file system, and which of them have a checkpoint's files. `plan --storage` and "
     "`reshard --storage` read it.",
     {{"servers", "how many there are, or a list of {\"name\": …, \"bandwidth\": …, \"latency\": …}; they are counted "
       "from 0"},
      {"bandwidth", "bytes per second of a server that does not state its own"},
      {"latency", "seconds before the first byte of a request, for servers that do not state their own (default: 0)"},
      {"stripe_size", "bytes, for files that do not state their own (default: 1 MiB)"},
      {"stripe_count", "how many servers share a file that does not state it (default: 1)"},
      {"files", "where files are: first is the server of the first stripe, and the next stripes are on the servers "
       "after it; or servers lists them; files that are not listed begin at the servers in turn"}},
     "storage.json\n"
     "{\n"
     "  \"schema\": \"tessera.storage/1\",\n"
     "  \"servers\": [{\"name\": \"oss0\"}, {\"name\": \"oss1\"}, {\"name\": \"slow\", \"bandwidth\": 5e8, \"latency\": 0.002}],\n"
     "  \"bandwidth\": 2e9,\n"
     "  \"stripe_size\": 4194304,\n"
     "  \"files\": [{\"file\": \"__0_0.distcp\", \"servers\": [0, 2]}]\n"
     "}\n"
     "tessera plan ckpt/ --mesh dp=4 --placements 'shard(0)' --storage storage.json\n"},
    {"tessera.shards/1",
     "How the plain tensors of several ranks form whole ones. Every command that opens a checkpoint reads it with "
     "`--shards`.",
     {{"ranks", "the file of each rank, relative to the checkpoint: {tp} and {pp} are its tensor- and pipeline-parallel "
       "ranks, and {part} numbers the files of one rank"},
      {"rules", "the first rule whose match, a GLOB, matches the whole name decides; tensors without one must be equal "
       "on all ranks"},
      {"concat", "in a rule: the ranks' tensors follow each other along this dim"},
      {"blocks", "with concat: each rank's tensor is this many equal blocks, or blocks of these sizes, which are joined "
       "block by block, as gate and up, or q, k and v"},
      {"copies", "with concat: how many consecutive ranks have the same block, as shared key and value heads"},
      {"trim", "with concat: cut the result to this size, as for a padded vocabulary"},
      {"replicate", "in a rule: true; every rank has the same tensor"},
      {"only_rank", "in a rule: the tensor of this rank counts"},
      {"stack", "in a rule: each rank's tensor is one index of a new dim, at this position"},
      {"stages", "for pipeline stages that number their layers from 0: pattern shows where the number is, and layers has "
       "the number of layers of each stage"}},
     "shards.json\n"
     "{\n"
     "  \"schema\": \"tessera.shards/1\",\n"
     "  \"ranks\": \"rank{tp}.pt\",\n"
     "  \"rules\": [\n"
     "    {\"match\": \"**.qkv.weight\", \"concat\": 0, \"blocks\": 3},\n"
     "    {\"match\": \"**.norm.weight\", \"replicate\": true},\n"
     "    {\"match\": \"embed.weight\", \"concat\": 0, \"trim\": 7}\n"
     "  ]\n"
     "}\n"
     "tessera convert ranks/ joined.safetensors --shards shards.json\n"},
    {"tessera.map/1",
     "How one model's names and layouts become another's. `--map` reads it; `tessera map show NAME` prints a "
     "built-in map, and `tessera map suggest A B` writes one for two checkpoints.",
     {{"rules", "each selects tensors by the names in from, transforms them by the steps in do, and gives the results "
       "the names in to"},
      {"from, to", "{x} in a name matches one component and {x...} the rest; a rule applies once for each value of what "
       "both sides have"},
      {"do", "steps: concat, split (with sizes or parts), interleave, stack, unstack, transpose, reshape, "
       "permute_rope, trim, pad, cast, dequantize; \"$name\" in them is a number of config.json"},
      {"unmatched", "names that no rule matches: refuse (the default), keep or drop"},
      {"before", "rules that bring several forms of a model to one, and keep what they do not match"},
      {"shape, layers, required, inverse, tied_to, copy_of", "in a rule: what the map checks, and what its inverse does (the schema describes them)"},
      {"dims", "what the dims that shape names are in terms of config.json"}},
     "map.json\n"
     "{\n"
     "  \"schema\": \"tessera.map/1\",\n"
     "  \"rules\": [\n"
     "    {\"from\": [\"embed.weight\"], \"to\": [\"model.embed_tokens.weight\"]},\n"
     "    {\"from\": [\"head.weight\"], \"to\": [\"lm_head.weight\"], \"do\": [{\"transpose\": [1, 0]}]},\n"
     "    {\n"
     "      \"from\": [\"layers.{n}.attn.weight\"],\n"
     "      \"to\": [\"model.layers.{n}.attn.q.weight\", \"model.layers.{n}.attn.k.weight\"],\n"
     "      \"do\": [{\"split\": 0, \"parts\": 2}]\n"
     "    },\n"
     "    {\"from\": [\"layers.{n}.{rest...}\"], \"to\": [\"model.layers.{n}.{rest...}\"]}\n"
     "  ]\n"
     "}\n"
     "tessera convert ckpt/ mapped.safetensors --map map.json\n"},
    {"tessera.modules/1",
     "A model's module tree. `fqn` and `optim --modules` read it, and so do `validate` and `convert` with "
     "`--against`. samples/describe_modules.py writes it for a live nn.Module.",
     {{"root", "a module: class, parameters, buffers and children by name, extra_state if it has one, and wrapper "
       "(ddp, fsdp1, compiled or checkpoint) if it only wraps a child"},
      {"parameters, buffers", "each has a shape, and may have a dtype, requires_grad, persistent (buffers) and an id; equal ids are "
       "one tensor"},
      {"children", "modules again, or {\"same_as\": PATH} for a module that is shared"},
      {"groups", "the names of the parameters in each param group of the optimizer"}},
     "modules.json\n"
     "{\n"
     "  \"schema\": \"tessera.modules/1\",\n"
     "  \"root\": {\n"
     "    \"class\": \"Net\",\n"
     "    \"children\": {\n"
     "      \"embed\": {\"class\": \"Embedding\", \"parameters\": {\"weight\": {\"shape\": [8, 4], \"dtype\": \"float32\"}}},\n"
     "      \"layers\": {\n"
     "        \"class\": \"ModuleList\",\n"
     "        \"children\": {\n"
     "          \"0\": {\n"
     "            \"class\": \"OptimizedModule\",\n"
     "            \"wrapper\": \"compiled\",\n"
     "            \"children\": {\n"
     "              \"_orig_mod\": {\n"
     "                \"class\": \"Block\",\n"
     "                \"children\": {\n"
     "                  \"attn\": {\"class\": \"Linear\", \"parameters\": {\"weight\": {\"shape\": [4, 4]}}},\n"
     "                  \"norm\": {\"class\": \"LayerNorm\", \"parameters\": {\"weight\": {\"shape\": [4]}}}\n"
     "                }\n"
     "              }\n"
     "            }\n"
     "          }\n"
     "        }\n"
     "      }\n"
     "    }\n"
     "  }\n"
     "}\n"
     "tessera fqn modules.json\n"},
    {"tessera.flat-params/1",
     "The flat parameters of an FSDP1 model. `optim unshard`, `optim shard`, `convert` and `plan` read it with "
     "`--flat-params`; samples/describe_modules.py writes it.",
     {{"world_size", "the number of ranks"},
      {"units", "the wrapped modules: fsdp_module is the unit's name, params its parameters in flat order, and "
       "numels_with_padding with is_padding_mask the elements of parameters and paddings in that order"},
      {"param_groups", "the names of the parameters in each param group: with use_orig_params false, those of flat parameters"},
      {"use_orig_params", "as FSDP was given it (default: false)"},
      {"files", "the raw states of the ranks, in rank order"},
      {"shard_groups", "for HYBRID strategies: the ranks of each replica"}},
     "flat.json\n"
     "{\n"
     "  \"schema\": \"tessera.flat-params/1\",\n"
     "  \"world_size\": 2,\n"
     "  \"use_orig_params\": true,\n"
     "  \"units\": [\n"
     "    {\n"
     "      \"fsdp_module\": \"\",\n"
     "      \"params\": [{\"fqn\": \"fc.weight\", \"shape\": [2, 3]}, {\"fqn\": \"fc.bias\", \"shape\": [2]}],\n"
     "      \"numels_with_padding\": [6, 2],\n"
     "      \"is_padding_mask\": [false, false]\n"
     "    }\n"
     "  ],\n"
     "  \"param_groups\": [[\"fc.weight\", \"fc.bias\"]]\n"
     "}\n"
     "tessera optim shard optim.pt optim-ranks/ --flat-params flat.json\n"},
    {"tessera.layout/1, tessera.manifest/1",
     "What a checkpoint must contain. `tessera layout` and `tessera manifest` write them; `validate --layout`, "
     "`--against` and `verify` read them. Only rules are written by hand.",
     {{"entries", "the names, kinds, dtypes and shapes; chunks and hashes where they are checked"},
      {"rules", "the first rule whose match, a GLOB, matches the whole name decides which differences are allowed"},
      {"allow", "in a rule: missing, extra, dtype, shape, chunks, value"},
      {"dtypes", "in a rule: further dtypes that are as good as the one of the entry"}},
     "layout.json\n"
     "{\n"
     "  \"schema\": \"tessera.layout/1\",\n"
     "  \"entries\": [\n"
     "    {\"fqn\": \"embed.weight\", \"kind\": \"tensor\", \"dtype\": \"float32\", \"shape\": [8, 4]},\n"
     "    {\"fqn\": \"head.weight\", \"kind\": \"tensor\", \"dtype\": \"bfloat16\", \"shape\": [8, 4]}\n"
     "  ],\n"
     "  \"rules\": [\n"
     "    {\"match\": \"layers.**\", \"allow\": [\"extra\"]},\n"
     "    {\"match\": \"head.weight\", \"dtypes\": [\"float32\"]}\n"
     "  ]\n"
     "}\n"
     "tessera validate ckpt/ --layout layout.json\n"},
    {"A list of names",
     "One name per line; empty lines and lines that begin with # are skipped. `--against` of `validate` and "
     "`convert` reads it in place of a module tree, and takes a checkpoint or an index file (weight_map) too.",
     {{0}},
     "names.txt\n"
     "# What the model loads\n"
     "embed.weight\n"
     "head.weight\n"
     "layers.0.attn.weight\n"
     "layers.0.norm.weight\n"
     "layers.1.attn.weight\n"
     "layers.1.norm.weight\n"
     "tessera validate ckpt/ --against names.txt\n"},
    {"tessera.findings/1, tessera.diff/1",
     "Findings and differences that are known. `validate --baseline` and `diff --baseline` read what `--json` of the "
     "same command printed; it may be edited.",
     {{"findings", "of validate: each has a rule, and a file and an fqn where the finding has them"},
      {"added, removed, changed, renamed", "of diff: names, {\"a\": NAME, \"b\": NAME} for renamed, and for changed {\"fqn\": NAME, \"what\": "
       "[WORD, …]}"}},
     "known.json\n"
     "{\n"
     "  \"schema\": \"tessera.findings/1\",\n"
     "  \"findings\": [{\"rule\": \"values/nan\", \"fqn\": \"head.weight\"}]\n"
     "}\n"
     "tessera validate --deep nan/ --rule values/nan=error --baseline known.json\n"},
    {0},
};
// clang-format on
