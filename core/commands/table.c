/* The table of options and commands: see tessera/sys/commands.h.
 *
 * A row is an option with one help text, whichever commands have it. Each command lists its options in the order in which help shows
 * them. README.md says how to add an option or a command. */
#include "tessera/sys/commands.h"
#include "tessera/sys/document.h"

/* What help is made of, and the interfaces of other languages. A program that has these from elsewhere leaves them out: the npm
 * package has them in commands.js. */
#ifdef TSR_WITHOUT_HELP
#define HELP 1 ? NULL:
#else
#define HELP
#endif
/* Before the lists of commands that the npm package does not have. */
#define OF_PROGRAM HELP

/* The last arguments are the help text and other members. */
#define OPTION(id, kind, place, text, named, ...) \
    static const tsr_option id = {.name = (text), \
                                  .type = TSR_OPTION_##kind, \
                                  .field = offsetof(tsr_command_options, place), \
                                  .value = (named), \
                                  .help = HELP __VA_ARGS__};

/* The default of an option, directly after its help text, which all front ends show it in. */
#define DEFAULT(text)    " (default: " text ")", .by_default = HELP text
#define INFERRED(output) "inferred from the extension of " output ", or safetensors with --max-shard-size"

/* Why front ends do not have options. */
#define PRINTED   "a call returns the document"
#define PRINTS    "nothing is printed"
#define TERMINAL  "it is about text for a terminal"
#define NO_STATUS "a call has no exit status"
#define SINK      "a sink starts from the beginning"

/* ---- listing ---- */

OPTION(tree, FLAG, tree, "tree", NULL, "Show a tree with totals per prefix", .npm = HELP TERMINAL, .python = HELP TERMINAL)
OPTION(inspect_json, FLAG, json, "json", NULL, "Print the tessera.inspect/1 document", .npm = HELP PRINTED,
       .python = HELP PRINTED)
OPTION(include, TEXTS, selection.include, "include", "GLOB",
       "Use only names that match (repeatable): * within a component, ** across components, ?, [...]")
OPTION(exclude, TEXTS, selection.exclude, "exclude", "GLOB", "Leave out names that match (repeatable); overrides --include")
OPTION(inspect_hash, CHOICE, hash, "hash", "sha256|xxh3",
       "Compute a digest of each tensor's values, independent of sharding and format")
OPTION(stats, FLAG, stats, "stats", NULL,
       "Compute min, max, mean, std, and the number of NaN, Inf and zero values of each tensor")
OPTION(allow_expansion, FLAG, allow_expansion, "allow-expansion", NULL,
       "Work on tensors that repeat stored elements more than 1,024 times, even beyond 1 GiB", .role = TSR_OPTION_OF_RUN)

/* ---- which checkpoint is opened ---- */

OPTION(part, TEXT, source.part, "part", "NAME",
       "Open only this part of a checkpoint that is made of parts (inspect lists them)", .npm_opens = true,
       .role = TSR_OPTION_OF_SOURCE)
OPTION(
    step, TEXT, source.step, "step", "STEP",
    "Open this checkpoint of a directory that holds several: latest, latest-valid (the newest without errors), a name or path "
    "below it, or the number in its name",
    .npm_opens = true, .role = TSR_OPTION_OF_SOURCE)
OPTION(also, TEXTS, source.also, "also", "PATH",
       "Add the files of another directory to those of PATH (repeatable), for nodes that wrote to local disks",
       .npm = HELP "the files of all directories are given to open", .role = TSR_OPTION_OF_SOURCE)
OPTION(shards, DOCUMENT, source.shards, "shards", "MAP",
       "Join the plain tensors of several ranks by a tessera.shards/1 file, or by meta-llama, megatron-gpt or vllm",
       .npm_opens = true)
OPTION(salvage, FLAG, source.salvage, "salvage", NULL,
       "Open what is whole of a single torch.save or safetensors file that was cut short, and report what is lost",
       .npm_opens = true, .role = TSR_OPTION_OF_SOURCE)

/* ---- view and get ---- */

OPTION(port, COUNT, port, "port", "N", "Listen on port N" DEFAULT("a free port"))
OPTION(pages, TEXT, pages, "pages", "DIRECTORY",
       "Serve this build of the viewer" DEFAULT("the one installed or built with this program"))
OPTION(get_output, TEXT, output, "output", "FILE",
       "Write the values to FILE.npy, or their raw little-endian bytes to FILE.bin", .letter = 'o', .npm = HELP PRINTED,
       .python = HELP PRINTED)
OPTION(print, FLAG, print, "print", NULL, "Print all values, however many there are", .npm = HELP TERMINAL,
       .python = HELP TERMINAL)

/* ---- comparing and checking ---- */

OPTION(map, DOCUMENT, map, "map", "MAP",
       "Give the tensors another model's names and layouts: a tessera.map/1 document or a built-in map")
OPTION(inverse, FLAG, inverse, "inverse", NULL, "With --map: apply the map backwards")
OPTION(diff_dequantize, FLAG, dequantize, "dequantize", NULL,
       "Turn the quantized numbers of A into weights, in the dtype of config.json, or bfloat16")
OPTION(diff_values, FLAG, values, "values", NULL, "Compare values too, bit for bit",
       .npm = HELP "Diff.step() compares values")
OPTION(atol, REAL, atol, "atol", "X", "Allow values to differ by X; NaN equals NaN (implies --values)")
OPTION(rtol, REAL, rtol, "rtol", "X", "Allow values to differ by X times the value in B (implies --values)")
OPTION(diff_layout, FLAG, compares_layout, "layout", NULL, "Report different chunks as a difference")
OPTION(diff_canonical, FLAG, compares_canonical, "canonical", NULL,
       "Match names without wrapper prefixes (module, _orig_mod, …), also in optimizer state")
OPTION(
    canonical, FLAG, canonical, "canonical", NULL,
    "Remove wrapper prefixes (module, _orig_mod, …) from all names first, also in optimizer state; all other options mean the "
    "resulting names")
OPTION(canonical_modules, DOCUMENT, modules, "modules", "MODULES.json",
       "With --canonical: take the model's names from a tessera.modules/1 document, not from the text of the names alone")
OPTION(
    kept_prefix, TEXT, kept_prefix, "prefix", "TEXT",
    "Use only names with this prefix, such as model., and strip it, after --canonical; all other options mean the resulting names")
OPTION(diff_format, CHOICE, format, "format", "text|" TSR_REPORT_FORMATS,
       "Report in this format; json is the tessera.diff/1 document" DEFAULT("text"),
       .npm = HELP "a call gives the JSON document; report() gives the others",
       .python = HELP "report and report_diff choose the form")
OPTION(report_json, FLAG, json, "json", NULL, "Same as --format json", .npm = HELP PRINTED, .python = HELP PRINTED)
OPTION(diff_fail_on, CHOICE, fail_on, "fail-on", "error|warning|note",
       "Exit with 1 for differences at or above this level" DEFAULT("error"), .npm = HELP NO_STATUS,
       .python = HELP NO_STATUS)
OPTION(rule, TEXTS, rules, "rule", "ID=LEVEL",
       "Report a rule as error, warning or note, or turn it off; ID may end in * (repeatable; the last match wins)")
OPTION(diff_baseline, DOCUMENT, baseline, "baseline", "FILE",
       "Leave out differences that an earlier --json document lists with the same name and kind")
OPTION(diff_list_rules, FLAG, list_rules, "list-rules", NULL, "List the rules of diff with their levels",
       .npm = HELP "ruleHelp explains a rule", .python = HELP "tessera explain lists them")
OPTION(deep, FLAG, deep, "deep", NULL,
       "Read every byte: check structure, checksums, dtypes, shapes and replicas, and count NaN values")
OPTION(validate_layout, DOCUMENT, layout, "layout", "FILE",
       "Check against a file that `tessera layout` wrote; with --deep, check its hashes too")
OPTION(
    validate_against, MODEL, against, "against", "FILE",
    "Check that it would load: compare names, dtypes and shapes with a checkpoint, a module tree, an index file, or a list of names, one per line")
OPTION(validate_prefix, TEXT, prefix, "prefix", "TEXT",
       "With --against: use only names with this prefix, such as model., and strip it")
OPTION(validate_exclude, TEXTS, selection.exclude, "exclude", "GLOB",
       "Leave out names that match, of PATH and of what it is checked against (repeatable)")
OPTION(allow, TEXT, allow, "allow", "WORDS", "Allow these differences: missing,extra,dtype,shape,chunks,value")
OPTION(format, CHOICE, format, "format", "text|" TSR_REPORT_FORMATS, "Report in this format" DEFAULT("text"),
       .npm = HELP "a call gives the JSON document; report() gives the others",
       .python = HELP "report and report_diff choose the form")
OPTION(validate_fail_on, CHOICE, fail_on, "fail-on", "error|warning|note",
       "Exit with 1 for findings at or above this level" DEFAULT("error"), .npm = HELP NO_STATUS, .python = HELP NO_STATUS)
OPTION(validate_baseline, DOCUMENT, baseline, "baseline", "FILE",
       "Leave out findings that an earlier --json document lists with the same rule, file and name")
OPTION(changed_files, FLAG, changed_files, "changed-files", NULL,
       "Take the PATHs as changed files, as a hook is given, and validate each checkpoint that they belong to, once",
       .npm = HELP "it is about files on a disk", .python = HELP "it is about the arguments of a hook")
OPTION(validate_list_rules, FLAG, list_rules, "list-rules", NULL, "List the rules of validate with their levels",
       .npm = HELP "ruleHelp explains a rule", .python = HELP "tessera explain lists them")

OPTION(latest_deep, FLAG, deep, "deep", NULL, "Read every byte of the checkpoints, as `validate --deep` does")
OPTION(latest_json, FLAG, json, "json", NULL, "Print the tessera.latest/1 document", .npm = HELP PRINTED,
       .python = HELP PRINTED)

OPTION(prune_keep, COUNT, keep, "keep", "N", "Keep the N newest checkpoints without errors (required)")
OPTION(prune_keep_every, COUNT, keep_every, "keep-every", "STEPS",
       "Keep each checkpoint without errors whose step is a multiple of STEPS, too")
OPTION(prune_deep, FLAG, deep, "deep", NULL, "Read every byte to decide which checkpoints are without errors")
OPTION(whole_directory, FLAG, whole_directory, "whole-directory", NULL,
       "Remove a checkpoint's directory with all other files in it, unless it holds another checkpoint or a mount")
OPTION(prune_dry_run, FLAG, dry_run, "dry-run", NULL, "Show what would be removed, but remove nothing")
OPTION(prune_json, FLAG, json, "json", NULL, "Print the tessera.prune/1 document", .npm = HELP PRINTED,
       .python = HELP PRINTED)

/* ---- layout, manifest, verify ---- */

OPTION(layout_output, TEXT, output, "output", "FILE", "Write to FILE; - is standard output" DEFAULT("-"), .letter = 'o',
       .npm = HELP PRINTED, .python = HELP PRINTED)
OPTION(no_chunks, FLAG, no_chunks, "no-chunks", NULL, "Leave out the chunks: record only names, dtypes and shapes",
       .npm_name = HELP "chunks")
OPTION(layout_hash, CHOICE, hash, "hash", "sha256|xxh3", "Add a digest of each entry's values (reads every byte)")
OPTION(listing_json, FLAG, json, "json", NULL, "Accepted for consistency; the output is always JSON", .npm = HELP PRINTED,
       .python = HELP PRINTED)
OPTION(manifest_hash, CHOICE, hash, "hash", "sha256|xxh3", "Use this digest algorithm" DEFAULT("xxh3"))
OPTION(dequantize_stored, FLAG, dequantize, "dequantize", NULL,
       "Turn quantized numbers into weights, in the dtype of config.json, or bfloat16")

/* ---- writing ---- */

OPTION(convert_to, CHOICE, to, "to", "safetensors|torch|dcp|megatron-dist|deepspeed-universal|ranks",
       "Write this format; ranks: one file per rank, cut by --shards" DEFAULT(INFERRED("DEST")), .npm_needs = true)
OPTION(convert_world_size, COUNT, world_size, "world-size", "N",
       "With --to ranks: write files for N ranks, those of all pipeline stages together")
OPTION(rename, TEXTS, renames, "rename", "FROM=TO",
       "Rename: a literal prefix, or one * on each side (repeatable; each applies to the result of those before it)")
OPTION(max_shard_size, SIZE, max_shard_size, "max-shard-size", "SIZE",
       "Write a directory of safetensors files of at most SIZE, with an index")
OPTION(
    convert_against, MODEL, against, "against", "FILE",
    "Refuse to write what would not load: compare names, dtypes and shapes with a checkpoint, a module tree, an index file, or a list of names, one per line",
    .role = TSR_OPTION_OF_RUN)
OPTION(dequantize, FLAG, dequantize, "dequantize", NULL,
       "Turn quantized numbers into weights, in --dtype; without it, in the dtype of config.json, or bfloat16")
OPTION(quantize, CHOICE, quantize, "quantize", "fp8-block",
       "Write linear weights as float8_e4m3fn in blocks of 128 x 128, with NAME.weight_scale_inv, as transformers does")
OPTION(
    no_quantize, TEXTS, no_quantize, "no-quantize", "GLOB",
    "With --quantize: also leave weights that match as they are (repeatable); embeddings, norms, output layers and routers are never quantized")
OPTION(
    config, FLAG, config, "config", NULL,
    "Copy config.json next to the output, with what the conversion changes: quantization_config, the dtype, and the vocabulary and tied embeddings of an adapter; a DEST that ends in / then is safetensors",
    .npm = HELP "a sink receives the checkpoint's files only")
OPTION(convert_lora, CHECKPOINT, lora, "lora", "DIRECTORY",
       "Fold a LoRA adapter of PEFT into PATH, as its merge_and_unload does", .role = TSR_OPTION_OF_SOURCE)
OPTION(dtype, TEXT, dtype, "dtype", "DTYPE", "Cast floating-point tensors, rounding correctly")
OPTION(for_torch, TEXT, for_torch, "for-torch", "VERSION",
       "Write what this version of PyTorch loads, 2.3 to 2.15" DEFAULT("2.4, or the oldest that can"))
OPTION(raw_cast, FLAG, raw_cast, "raw-cast", NULL,
       "Let --dtype cast quantized numbers and their scales as stored, without applying the scales")
OPTION(objects, CHOICE, objects, "objects", "keep|drop|sidecar|refuse",
       "Treat non-tensor objects this way; sidecar writes JSON" DEFAULT("keep for torch and dcp, refuse for safetensors"))
OPTION(max_mem, SIZE, max_memory, "max-mem", "SIZE",
       "Limit the memory for buffers" DEFAULT("16MiB, or 4MiB per thread if that is more"), .role = TSR_OPTION_OF_RUN)
OPTION(ignore_crc, FLAG, ignore_crc, "ignore-crc", NULL, "Accept tensors whose bytes do not match the source's CRC-32",
       .role = TSR_OPTION_OF_RUN)
OPTION(no_checksums, FLAG, no_checksums, "no-checksums", NULL,
       "Write no checksums: leave out tessera.crc32 in safetensors files, and zeros for the CRC-32s in torch files and DCP")
OPTION(overwrite, FLAG, overwrite, "overwrite", NULL,
       "Replace the checkpoint at DEST once the new one is complete; keep files that it does not list",
       .npm = HELP "the sink decides", .role = TSR_OPTION_OF_RUN)
OPTION(
    resume, FLAG, resume, "resume", NULL,
    "Continue an interrupted run of the same job, or succeed if DEST is what it has written; keep finished work if this run fails",
    .npm = HELP SINK, .role = TSR_OPTION_OF_RUN)
OPTION(discard_parts, FLAG, discard_parts, "discard-parts", NULL,
       "Remove what unfinished shares of another plan (exec --share) left at DEST",
       .npm = HELP "a sink has no shares of plans", .role = TSR_OPTION_OF_RUN)
OPTION(no_verify, FLAG, no_verify, "no-verify", NULL, "With --resume: do not check again what the interrupted run wrote",
       .npm = HELP SINK, .role = TSR_OPTION_OF_RUN)
OPTION(dry_run, FLAG, dry_run, "dry-run", NULL, "Report what would be written, but write nothing",
       .npm = HELP "a sink that keeps nothing is a dry run", .role = TSR_OPTION_OF_RUN)
OPTION(writing_json, FLAG, json, "json", NULL,
       "Print the tessera.convert/1 document: what was written, cast, copied and left out", .npm = HELP PRINTED,
       .python = HELP PRINTED, .role = TSR_OPTION_OF_RUN)

/* ---- merge ---- */

OPTION(method, CHOICE, method, "method", "linear|slerp|task-arithmetic",
       "Add weighted tensors; follow the arc between two; or add to --base the weighted differences from it")
OPTION(weight, TEXTS, weights, "weight", "X",
       "The weight of the next checkpoint, in their order (repeatable)" DEFAULT("1 each"))
OPTION(no_normalize, FLAG, no_normalize, "no-normalize", NULL,
       "With --method linear: do not divide by the sum of the weights")
OPTION(base, CHECKPOINT, base, "base", "PATH",
       "With --method task-arithmetic: the checkpoint that the others were trained from", .role = TSR_OPTION_OF_SOURCE)
OPTION(t, REAL, t, "t", "X", "With --method slerp: where on the arc, from 0 for the first checkpoint to 1 for the second")
OPTION(merge_to, CHOICE, to, "to", "safetensors|torch|dcp|megatron-dist|deepspeed-universal",
       "Write this format" DEFAULT(INFERRED("OUT")))
OPTION(merge_lora, CHECKPOINT, lora, "lora", "DIRECTORY", "Fold a LoRA adapter of PEFT into A, as its merge_and_unload does",
       .role = TSR_OPTION_OF_SOURCE)

/* ---- plan, reshard, exec ---- */

OPTION(target, DOCUMENT, target, "target", "FILE", "Read mesh and placements from a tessera.target/1 document")
OPTION(mesh, TEXT, mesh, "mesh", "MESH", "Use this device mesh, such as dp=4,tp=2")
OPTION(placements, TEXT, placements, "placements", "LIST",
       "Place every tensor this way, with one placement per mesh dimension: shard(0),replicate")
OPTION(plan_to, CHOICE, to, "to", "safetensors|torch|dcp|megatron-dist|deepspeed-universal|ranks",
       "Let exec write this format" DEFAULT("as reshard and convert"))
OPTION(plan_objects, CHOICE, objects, "objects", "keep|drop|sidecar|refuse", "Let exec treat non-tensor objects this way")
OPTION(plan_dtype, TEXT, dtype, "dtype", "DTYPE", "Let exec cast floating-point tensors")
OPTION(plan_storage, DOCUMENT, storage, "storage", "FILE",
       "Show the load of each server of this tessera.storage/1 document, and order reads and shares by server")
OPTION(plan_json, FLAG, json, "json", NULL, "Print the tessera.plan/1 document", .npm = HELP PRINTED, .python = HELP PRINTED,
       .role = TSR_OPTION_OF_RUN)
OPTION(items, FLAG, items, "items", NULL, "Print the document with every read of every rank", .role = TSR_OPTION_OF_RUN)
OPTION(reshard_to, CHOICE, to, "to", "safetensors|torch|dcp|megatron-dist",
       "Write this format" DEFAULT("the source's format"))
OPTION(reshard_storage, DOCUMENT, storage, "storage", "FILE",
       "Spread the processes of mpirun over the file servers of this tessera.storage/1 document",
       .npm = HELP "it orders what several processes read")
OPTION(share, TEXT, share, "share", "i/N",
       "Write only this share of the bytes, from 1/N to N/N, in any order and on any machine")
OPTION(exec_part, TEXT, share, "part", "i/N", "An older name of --share")
OPTION(finish, FLAG, finish, "finish", NULL, "Check that all shares are written, and publish the checkpoint")
OPTION(source, TEXT, source_path, "source", "PATH",
       "Read the plan's source from here: it has moved, or its URL needs a fresh signature")
OPTION(exec_resume, FLAG, resume, "resume", NULL,
       "Succeed if DEST is what this plan has written; continue an interrupted upload (on a disk, exec always continues)",
       .npm = HELP SINK)
OPTION(exec_no_verify, FLAG, no_verify, "no-verify", NULL, "Do not check again what other shares and earlier runs wrote",
       .npm = HELP SINK)
OPTION(exec_dry_run, FLAG, dry_run, "dry-run", NULL,
       "Check the plan against its source and decide everything, but write nothing",
       .npm = HELP "a sink that keeps nothing is a dry run")
OPTION(exec_json, FLAG, json, "json", NULL, "Print the tessera.exec/1 document", .npm = HELP PRINTED, .python = HELP PRINTED)

/* ---- optim ---- */

OPTION(optim_to, CHOICE, to, "to", "torch|dcp", "Write this format" DEFAULT("torch"),
       .npm = HELP "convert writes the result in any form")
OPTION(modules, DOCUMENT, modules, "modules", "MODULES.json",
       "Take names, frozen parameters and groups from a tessera.modules/1 document")
OPTION(flat_params, DOCUMENT, flat_params, "flat-params", "FLAT.json",
       "Take FSDP1's flat parameters from a tessera.flat-params/1 document")
OPTION(
    convert_flat_params, DOCUMENT, flat_params, "flat-params", "FLAT.json",
    "Cut the flat parameters of FSDP1's LOCAL_STATE_DICT into the model's parameters, as a tessera.flat-params/1 document states",
    .npm = HELP "the package reads the flat parameters as they are stored")
OPTION(optim_world_size, NUMBER, ranks, "world-size", "N", "Write for N ranks (shard)" DEFAULT("as many as FLAT.json has"))
OPTION(sharded, FLAG, sharded, "sharded", NULL,
       "Write one file per rank, with DTensors sharded by rows, instead of the full state (unshard)")
OPTION(rank, NUMBER, rank, "rank", "N",
       "Use the state of rank N where ranks differ in state that FSDP does not shard (unshard)")
OPTION(at, TEXT, at, "at", "NAME",
       "Use the optimizer with this name, such as optimizer_states.0" DEFAULT("the only one that looks like an optimizer"))
OPTION(optim_no_checksums, FLAG, no_checksums, "no-checksums", NULL, "Write zeros for the CRC-32s in torch files and DCP",
       .npm = HELP "its files always have them")
OPTION(optim_overwrite, FLAG, overwrite, "overwrite", NULL,
       "Replace the checkpoint at DEST; keep files that it does not list", .npm = HELP "nothing is written",
       .role = TSR_OPTION_OF_RUN)
OPTION(
    optim_resume, FLAG, resume, "resume", NULL,
    "Exit successfully if an earlier run has already written DEST; an interrupted upload continues, other runs start over",
    .npm = HELP SINK, .role = TSR_OPTION_OF_RUN)
OPTION(optim_json, FLAG, json, "json", NULL, "Print the tessera.optim/1 document", .npm = HELP PRINTED,
       .python = HELP PRINTED, .role = TSR_OPTION_OF_RUN)

/* ---- cp, repair, fqn, map, doctor, help ---- */

OPTION(cp_overwrite, FLAG, overwrite, "overwrite", NULL,
       "Replace the checkpoint at DEST; keep files that neither it nor PATH has", .npm = HELP "the sink decides")
OPTION(
    cp_resume, FLAG, resume, "resume", NULL,
    "Continue an interrupted copy: keep what it wrote if the digests agree; succeed if the copy is complete; keep finished work if this run fails",
    .npm = HELP SINK)
OPTION(cp_no_verify, FLAG, no_verify, "no-verify", NULL,
       "Do not read the copy back; without --resume, file systems that can share blocks then share them", .npm = HELP SINK)
OPTION(cp_json, FLAG, json, "json", NULL, "Print the tessera.cp/1 document", .npm = HELP PRINTED, .python = HELP PRINTED)
OPTION(like, CHECKPOINT, like, "like", "PATH",
       "Take names and shards from a sound checkpoint of the same job, such as the previous step")
OPTION(repair_json, FLAG, json, "json", NULL, "Print the tessera.repair/1 document", .npm = HELP PRINTED,
       .python = HELP PRINTED)
OPTION(repair_part, TEXT, source.part, "part", "NAME",
       "Rebuild that of this part, where each has its own: model or optimizer of accelerate's directories")
OPTION(checkpoint, CHECKPOINT, checkpoint, "checkpoint", "PATH",
       "Canonicalize the keys of a checkpoint by their text; with MODULES.json: suggest renames that fit the model",
       .npm = HELP "canonicalize is a method of the checkpoint")
OPTION(fqn_against, CHECKPOINT, against, "against", "PATH",
       "Suggest renames that give --checkpoint the names of this checkpoint",
       .npm = HELP "the package does not suggest renames")
OPTION(fqn_prefix, TEXT, prefix, "prefix", "TEXT",
       "With --checkpoint: use only keys with this prefix, and strip it (\"model.\")")
OPTION(fqn_json, FLAG, json, "json", NULL, "Print the tessera.fqn/1 document", .npm = HELP PRINTED, .python = HELP PRINTED)
OPTION(map_values, FLAG, values, "values", NULL, "With suggest: compare the values of all tensors that fit, bit for bit")
OPTION(map_json, FLAG, json, "json", NULL, "With list: print the tessera.maps/1 document; the others are always JSON",
       .npm = HELP PRINTED, .python = HELP PRINTED)
OPTION(explain_json, FLAG, json, "json", NULL, "Print the tessera.rules/1 document", .npm = HELP PRINTED,
       .python = HELP PRINTED)
OPTION(doctor_json, FLAG, json, "json", NULL, "Print the tessera.doctor/1 document", .npm = HELP PRINTED,
       .python = HELP PRINTED)
OPTION(man, FLAG, man, "man", NULL, "Print a manual page: tessera help --man COMMAND | man -l -")

/* ---- every command ---- */

OPTION(quiet, FLAG, quiet, "quiet", NULL, "Print nothing but errors and results", .letter = 'q', .npm = HELP PRINTS,
       .python = HELP PRINTS)
OPTION(no_progress, FLAG, no_progress, "no-progress", NULL, "Do not show the progress line (shown only on a terminal)",
       .npm = HELP PRINTS, .python = HELP PRINTS)
OPTION(color, CHOICE, color, "color", "auto|always|never",
       "Use colors; auto respects NO_COLOR and TERM=dumb" DEFAULT("auto"), .npm = HELP PRINTS, .python = HELP PRINTS)
OPTION(threads, COUNT, threads, "threads", "N",
       "Use N threads, at most 256; more than there are cores help with slow files" DEFAULT("one per available core"),
       .npm = HELP "a module has one thread")
OPTION(io_depth, COUNT, io_depth, "io-depth", "N", "Send up to N requests at once when reading from a server" DEFAULT("16"),
       .npm = HELP "the host reads")
OPTION(no_mpi, FLAG, no_mpi, "no-mpi", NULL, "Run as a single process, ignoring any MPI launcher",
       .npm = HELP "there is no MPI", .python = HELP "there is no MPI")
OPTION(help, FLAG, help, "help", NULL, "Show help for the command", .letter = 'h', .npm = HELP TERMINAL,
       .python = HELP TERMINAL)
OPTION(version, FLAG, version, "version", NULL, "Show the version and the libraries it was built with",
       .npm = HELP "package.json states it", .python = HELP "__version__ states it")
/* ---- commands ---- */

/* An option that the npm package does not have. In the module another one, which is never given, takes its place. */
#ifdef TSR_WITHOUT_HELP
OPTION(absent, FLAG, tree, "", NULL, "")
#define PROGRAM(option) 1 ? &absent : &(option)
#else
#define PROGRAM(option) &(option)
#endif

#define SOURCE &part, &step, PROGRAM(also), &shards, &salvage
#define WRITING \
    &include, &exclude, &dtype, &for_torch, &raw_cast, &objects, &max_mem, &ignore_crc, &no_checksums, PROGRAM(overwrite), \
        PROGRAM(resume), PROGRAM(discard_parts), PROGRAM(no_verify), PROGRAM(dry_run), &allow_expansion, \
        PROGRAM(writing_json)
#define SELECTION &include, &exclude
#define MAP       &map, &inverse
#define TARGET    &target, &mesh, &placements
#define CANONICAL &canonical, &canonical_modules
#define QUANTIZE  &quantize, &no_quantize

static const tsr_option *const inspect_options[] = {PROGRAM(tree), PROGRAM(inspect_json), SELECTION, &inspect_hash,
                                                    &stats,        &allow_expansion,      SOURCE,    NULL};
static const tsr_option *const view_options[] = {&port, &pages, SOURCE, NULL};
static const tsr_option *const get_options[] = {PROGRAM(get_output), PROGRAM(print), &allow_expansion, SOURCE, NULL};
static const tsr_option *const diff_options[] = {MAP,
                                                 &diff_dequantize,
                                                 PROGRAM(diff_values),
                                                 &atol,
                                                 &rtol,
                                                 &diff_layout,
                                                 &diff_canonical,
                                                 &canonical_modules,
                                                 PROGRAM(diff_format),
                                                 PROGRAM(report_json),
                                                 PROGRAM(diff_fail_on),
                                                 &rule,
                                                 &diff_baseline,
                                                 PROGRAM(diff_list_rules),
                                                 &allow_expansion,
                                                 SOURCE,
                                                 NULL};
static const tsr_option *const validate_options[] = {&deep,
                                                     &validate_layout,
                                                     &validate_against,
                                                     &validate_prefix,
                                                     &validate_exclude,
                                                     &allow,
                                                     PROGRAM(format),
                                                     PROGRAM(report_json),
                                                     PROGRAM(validate_fail_on),
                                                     &rule,
                                                     &validate_baseline,
                                                     PROGRAM(changed_files),
                                                     PROGRAM(validate_list_rules),
                                                     SOURCE,
                                                     NULL};
static const tsr_option *const latest_options[] = {&latest_deep, PROGRAM(latest_json), NULL};
static const tsr_option *const prune_options[] = {&prune_keep,    &prune_keep_every,   &prune_deep, &whole_directory,
                                                  &prune_dry_run, PROGRAM(prune_json), NULL};
static const tsr_option *const explain_options[] = {PROGRAM(explain_json), NULL};
static const tsr_option *const layout_options[] = {PROGRAM(layout_output), &no_chunks,       &layout_hash, SELECTION,
                                                   PROGRAM(listing_json),  &allow_expansion, SOURCE,       NULL};
static const tsr_option *const manifest_options[] = {
    PROGRAM(layout_output), &manifest_hash, SELECTION, PROGRAM(listing_json), CANONICAL, MAP, &dequantize_stored,
    &allow_expansion,       SOURCE,         NULL};
static const tsr_option *const verify_options[] = {PROGRAM(format),    PROGRAM(report_json), &allow, MAP,
                                                   &dequantize_stored, &allow_expansion,     SOURCE, NULL};
static const tsr_option *const convert_options[] = {&convert_to,
                                                    &convert_world_size,
                                                    CANONICAL,
                                                    &kept_prefix,
                                                    &rename,
                                                    PROGRAM(convert_flat_params),
                                                    &max_shard_size,
                                                    &convert_against,
                                                    MAP,
                                                    &dequantize,
                                                    QUANTIZE,
                                                    PROGRAM(config),
                                                    &convert_lora,
                                                    WRITING,
                                                    SOURCE,
                                                    NULL};
static const tsr_option *const merge_options[] = {&method,   &weight,         &no_normalize, &base,    &t,
                                                  &merge_to, &max_shard_size, &dequantize,   QUANTIZE, &merge_lora,
                                                  WRITING,   SOURCE,          NULL};
static const tsr_option *const plan_options[] = {TARGET,
                                                 MAP,
                                                 &dequantize,
                                                 QUANTIZE,
                                                 CANONICAL,
                                                 &kept_prefix,
                                                 &convert_lora,
                                                 SELECTION,
                                                 &rename,
                                                 PROGRAM(convert_flat_params),
                                                 &plan_to,
                                                 PROGRAM(config),
                                                 &max_shard_size,
                                                 &plan_objects,
                                                 &plan_dtype,
                                                 &for_torch,
                                                 &raw_cast,
                                                 &no_checksums,
                                                 &plan_storage,
                                                 &convert_world_size,
                                                 PROGRAM(plan_json),
                                                 &items,
                                                 SOURCE,
                                                 NULL};
static const tsr_option *const reshard_options[] = {TARGET,      &reshard_to, &reshard_storage, CANONICAL, MAP,
                                                    &dequantize, QUANTIZE,    WRITING,          SOURCE,    NULL};
static const tsr_option *const exec_options[] = {&share,
                                                 &exec_part,
                                                 &finish,
                                                 &source,
                                                 PROGRAM(also),
                                                 &max_mem,
                                                 &ignore_crc,
                                                 &no_checksums,
                                                 PROGRAM(overwrite),
                                                 PROGRAM(exec_resume),
                                                 PROGRAM(discard_parts),
                                                 PROGRAM(exec_no_verify),
                                                 PROGRAM(exec_dry_run),
                                                 PROGRAM(exec_json),
                                                 &allow_expansion,
                                                 &shards,
                                                 NULL};
static const tsr_option *const optim_options[] = {PROGRAM(optim_to),
                                                  &modules,
                                                  &flat_params,
                                                  &optim_world_size,
                                                  &sharded,
                                                  &rank,
                                                  &at,
                                                  &max_mem,
                                                  PROGRAM(optim_no_checksums),
                                                  PROGRAM(optim_overwrite),
                                                  PROGRAM(optim_resume),
                                                  PROGRAM(optim_json),
                                                  &allow_expansion,
                                                  &part,
                                                  &step,
                                                  PROGRAM(also),
                                                  NULL};
static const tsr_option *const cp_options[] = {PROGRAM(cp_overwrite), PROGRAM(cp_resume), PROGRAM(cp_no_verify),
                                               PROGRAM(cp_json), NULL};
static const tsr_option *const repair_options[] = {&like, PROGRAM(repair_json), &repair_part, &step, PROGRAM(also), NULL};
static const tsr_option *const fqn_options[] = {
    PROGRAM(checkpoint), PROGRAM(fqn_against), &fqn_prefix, MAP, PROGRAM(fqn_json), SOURCE, NULL};
static const tsr_option *const map_options[] = {&map_values, PROGRAM(map_json), &allow_expansion, SOURCE, NULL};
static const tsr_option *const doctor_options[] = {PROGRAM(doctor_json), NULL};
static const tsr_option *const help_options[] = {&man, NULL};
static const tsr_option *const completions_options[] = {NULL};
const tsr_option *const tsr_global_options[] = {PROGRAM(quiet),   PROGRAM(no_progress), PROGRAM(color),
                                                PROGRAM(threads), PROGRAM(io_depth),    PROGRAM(no_mpi),
                                                PROGRAM(help),    PROGRAM(version),     NULL};

#define RESHARD_HINT "it writes whole tensors; tessera reshard writes a checkpoint for a device mesh"
static const tsr_absent_option absent_in_convert[] = {
    {"mesh", RESHARD_HINT}, {"placements", RESHARD_HINT}, {"target", RESHARD_HINT}, {NULL, NULL}};
static const tsr_absent_option absent_in_optim[] = {
    {"shards",
     "it reads the optimizer's state of one file; join the ranks with tessera convert PATH DIR --to torch --shards MAP first"},
    {NULL, NULL}};
static const tsr_absent_option absent_in_repair[] = {
    {"shards",
     "a .metadata lists whole tensors and their chunks, and plain tensors of several ranks have none; pass --shards to inspect or convert"},
    {NULL, NULL}};

/* Functions of Python that are called otherwise than the command. */
static const char *const python_validate[] = {"validate", "check", "report", NULL};
static const char *const python_diff[] = {"diff", "report_diff", NULL};
static const char *const python_cp[] = {"copy", NULL};
static const char *const python_map[] = {"map_list", "map_show", "map_suggest", NULL};
static const char *const python_none[] = {NULL};

const tsr_command tsr_commands[] = {
    {.name = "inspect",
     .group = HELP "Look",
     .summary = HELP "Show what a checkpoint contains: names, dtypes, shapes, sizes, sharding and problems",
     .operands = HELP "PATH",
     .least = 1,
     .most = 1,
     .options = inspect_options,
     .npm = HELP "inspect"},
    {.name = "view",
     .summary = HELP "Open a checkpoint in the browser viewer, served on the loopback address",
     .operands = HELP "PATH [PATH]",
     .least = 1,
     .most = 2,
     .options = OF_PROGRAM view_options,
     .python = HELP python_none},
    {.name = "get",
     .summary = HELP "Read a tensor, or a slice of one",
     .operands = HELP "PATH FQN[SLICE]",
     .least = 2,
     .most = 2,
     .options = get_options,
     .npm = HELP "read"},
    {.name = "diff",
     .summary = HELP "Compare two checkpoints, whatever their formats and shardings",
     .operands = HELP "A B",
     .least = 0,
     .most = 2,
     .options = diff_options,
     .npm = HELP "diff",
     .python = HELP python_diff},
    {.name = "validate",
     .group = HELP "Check",
     .summary = HELP "Find what is wrong: holes, overlaps, missing files, damaged bytes, drift from a layout",
     .operands = HELP "PATH…",
     .least = 0,
     .most = UINT32_MAX,
     .options = validate_options,
     .npm = HELP "validate",
     .python = HELP python_validate},
    {.name = "latest",
     .summary = HELP "Print the newest checkpoint of a run that would load, to resume from",
     .operands = HELP "RUN",
     .least = 1,
     .most = 1,
     .options = OF_PROGRAM latest_options},
    {.name = "prune",
     .summary = HELP "Remove old checkpoints of a run, and keep the newest that would load",
     .operands = HELP "RUN",
     .least = 1,
     .most = 1,
     .options = OF_PROGRAM prune_options},
    {.name = "explain",
     .summary = HELP "Explain a rule of validate or diff",
     .operands = HELP "[RULE]",
     .least = 0,
     .most = 1,
     .options = OF_PROGRAM explain_options},
    {.name = "layout",
     .summary = HELP "Write a layout file for CI to check later checkpoints against",
     .operands = HELP "PATH",
     .least = 1,
     .most = 1,
     .options = layout_options,
     .npm = HELP "layout"},
    {.name = "manifest",
     .summary = HELP "Write checksums of all values that are the same for any sharding and format",
     .operands = HELP "PATH",
     .least = 1,
     .most = 1,
     .options = manifest_options,
     .npm = HELP "manifest"},
    {.name = "verify",
     .summary = HELP "Check all values against a manifest, whatever the sharding and format",
     .operands = HELP "PATH MANIFEST",
     .least = 2,
     .most = 2,
     .options = verify_options,
     .npm = HELP "verify"},
    {.name = "convert",
     .group = HELP "Write",
     .summary = HELP "Convert a checkpoint to another format, to other names, or to another dtype",
     .operands = HELP "PATH DEST",
     .least = 2,
     .most = 2,
     .options = convert_options,
     .absent = HELP absent_in_convert,
     .npm = HELP "convert"},
    {.name = "merge",
     .summary = HELP "Merge checkpoints of one model into a weighted sum",
     .operands = HELP "OUT A [B…]",
     .least = 2,
     .most = 1000,
     .options = OF_PROGRAM merge_options},
    {.name = "plan",
     .summary = HELP "Preview a reshard, or a conversion, and write the plan that exec carries out",
     .operands = HELP "PATH",
     .least = 1,
     .most = 1,
     .options = plan_options,
     .npm = HELP "plan"},
    {.name = "reshard",
     .summary = HELP "Reshard a checkpoint for a different device mesh",
     .operands = HELP "PATH DEST",
     .least = 2,
     .most = 2,
     .options = reshard_options,
     .npm = HELP "reshard"},
    {.name = "exec",
     .summary = HELP "Carry out a plan, as a whole or in shares, without MPI",
     .operands = HELP "PLAN DEST",
     .least = 2,
     .most = 2,
     .options = OF_PROGRAM exec_options},
    {.name = "optim",
     .summary = HELP "Convert optimizer state between its forms: names, ids, flat keys, FSDP1 shards",
     .operands = HELP "flatten|unflatten|to-fqn|to-id|unshard|shard PATH DEST",
     .least = 3,
     .most = 3,
     .options = optim_options,
     .absent = HELP absent_in_optim,
     .npm = HELP "optimizer"},
    {.name = "cp",
     .group = HELP "Copy and repair",
     .summary = HELP "Copy a checkpoint from one place to another, and read the copy back",
     .operands = HELP "PATH DEST",
     .least = 2,
     .most = 2,
     .options = OF_PROGRAM cp_options,
     .python = HELP python_cp},
    {.name = "repair",
     .summary =
         HELP "Rebuild a lost or damaged .metadata, or write what is whole of a damaged safetensors or torch.save file",
     .operands = HELP "PATH FILE",
     .least = 2,
     .most = 2,
     .options = OF_PROGRAM repair_options,
     .absent = HELP absent_in_repair},
    {.name = "fqn",
     .group = HELP "Names",
     .summary = HELP "Canonicalize parameter names as PyTorch does, and explain every change",
     .operands = HELP "[MODULES.json] [NAME…]",
     .least = 0,
     .most = 1u << 20,
     .options = fqn_options,
     .npm = HELP "canonicalize"},
    {.name = "map",
     .summary = HELP "List the built-in maps, print one, or suggest one between two checkpoints",
     .operands = HELP "list|show|suggest [NAME|A] [B]",
     .least = 1,
     .most = 3,
     .options = OF_PROGRAM map_options,
     .python = HELP python_map},
    {.name = "doctor",
     .group = HELP "Help",
     .summary = HELP "Show what this build and this machine support",
     .operands = HELP "[DIRECTORY]",
     .least = 0,
     .most = 1,
     .options = OF_PROGRAM doctor_options},
    {.name = "help",
     .summary = HELP "Show how to use a command, starting with examples",
     .operands = HELP "[COMMAND|formats]",
     .least = 0,
     .most = 1,
     .options = OF_PROGRAM help_options,
     .python = HELP python_none},
    {.name = "completions",
     .summary = HELP "Write the completion script for bash, zsh or fish",
     .operands = HELP "bash|zsh|fish",
     .least = 1,
     .most = 3 /* the scripts call `completions names PATH PREFIX` */,
     .options = OF_PROGRAM completions_options,
     .python = HELP python_none},
    {.name = NULL}};
