/* The table of all rules, sorted by id. `explain` prints it; `--list-rules` of validate and diff prints the rules of the
 * command. */
#include "tessera/findings.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/text.h"

#include <string.h>

static const tsr_rule rules[] = {
    {"container/empty", TSR_NOTE, "the checkpoint has no entries",
     "An empty state dict was saved, or this is not the file or directory that was meant."},
    {"dcp-safetensors/lone-shard", TSR_WARNING, "a file of sharded safetensors is read without the others",
     "Its tensors are shards, listed with the shapes of the shards. Open the directory that contains all shard files."},
    {"dcp-safetensors/no-global-shape", TSR_WARNING, "the global shapes of sharded safetensors are only inferred",
     "DCP's HuggingFaceStorageWriter stores the offsets of each shard but not the size of the whole tensor, so a lost "
     "trailing shard goes unnoticed. Check the checkpoint against a layout (`tessera validate --layout`)."},
    {"dcp-safetensors/shard-gap", TSR_WARNING, "a number is missing from the sequence of shard files",
     "A file shard-NNNNN-model-… is missing. Copy it from where the checkpoint was written."},
    {"dcp/beyond-end", TSR_ERROR, "an item is placed beyond the end of its data file",
     "The data file was truncated, or it does not belong to this metadata. Restore it from a copy."},
    {"dcp/dead-bytes", TSR_NOTE, "bytes of a data file belong to no item",
     "Nothing reads these bytes; they only take up space. They also appear when a data file of another save has the same "
     "name."},
    {"dcp/duplicate-record", TSR_ERROR, "storage_data places the same chunk twice",
     "Which of the two places is read depends on the reader. Save the checkpoint again."},
    {"dcp/extension", TSR_NOTE, "items went through a stream extension that Tessera does not have",
     "The names and shapes are those of the metadata. Only the program that has the extension can read the values; let it save "
     "the checkpoint without the extension, or with PyTorch's zstd."},
    {"dcp/item", TSR_ERROR, "an item of a data file cannot be read, or is not what the metadata says",
     "The data file is damaged, or the metadata belongs to another save. The message says what was found."},
    {"dcp/missing-file", TSR_ERROR, "a data file that the metadata names is missing",
     "Copy the whole directory, including the files of every rank."},
    {"dcp/newer", TSR_NOTE, "the metadata can be loaded only by PyTorch 2.15 and newer",
     "The metadata is not damaged. Load the checkpoint with the version that wrote it, or convert it: Tessera writes "
     "metadata that every supported version reads."},
    {"dcp/no-record", TSR_ERROR, "a chunk has no item in storage_data",
     "The metadata lists the chunk but not the location of its bytes, so the checkpoint cannot be loaded."},
    {"dcp/path-outside", TSR_ERROR, "the metadata names a file outside the checkpoint's directory",
     "Tessera never opens absolute paths or paths with '..': a checkpoint from an untrusted source could name any file on "
     "this machine."},
    {"dcp/record-without-chunk", TSR_ERROR, "storage_data places a chunk that the metadata does not list",
     "The chunk would never be loaded. Part of the metadata was lost, or it mixes two saves."},
    {"dcp/record-without-entry", TSR_ERROR, "storage_data places an item of an entry that the metadata does not list",
     "The item would never be loaded. Part of the metadata was lost, or it mixes two saves."},
    {"dcp/unreferenced-file", TSR_WARNING, "a file in the directory contains no item of the checkpoint",
     "It was left over from another save, or another program put it there. It is not read."},
    {"diff/added", TSR_ERROR, "an entry is only in the second of two checkpoints",
     "The entry was added, or the first checkpoint lost it."},
    {"diff/dtype", TSR_ERROR, "a tensor has a different dtype in the second checkpoint",
     "The tensor was cast, or the checkpoint was saved with a different precision."},
    {"diff/key", TSR_ERROR, "a key on the way to an entry is of another type in the second checkpoint",
     "A program wrote the int 0 as \"0\", or the other way round. PyTorch does not find the one under the other: an optimizer "
     "would load no state."},
    {"diff/layout", TSR_ERROR, "a tensor is split into different chunks in the second checkpoint",
     "It was saved with a different world size or sharding. Reported only with --layout."},
    {"diff/metadata", TSR_NOTE, "a pair of safetensors' __metadata__ is different in the second checkpoint",
     "The tensors are not affected, but programs that read the pairs may be, such as LoRA loaders that take alpha from them."},
    {"diff/object", TSR_ERROR, "an object has a different value in the second checkpoint",
     "A step count, a learning rate or another setting changed."},
    {"diff/removed", TSR_ERROR, "an entry is only in the first of two checkpoints",
     "The entry was removed, renamed or lost."},
    {"diff/renamed", TSR_NOTE, "an entry may have been renamed in the second checkpoint",
     "The two entries have the same shape and dtype, and similar names. `tessera convert --rename` renames entries."},
    {"diff/shape", TSR_ERROR, "a tensor has a different shape in the second checkpoint",
     "The model changed, or a dimension was padded."},
    {"diff/value", TSR_ERROR, "a tensor has different values in the second checkpoint",
     "Training continued, or the bytes were changed. --atol and --rtol allow for rounding errors."},
    {"file/crc", TSR_ERROR, "a document's bytes do not match the CRC-32 at its end",
     "The bytes changed after Tessera wrote the file: an index, .metadata, metadata.json or a document of objects ends with white "
     "space that is the CRC-32 of what is before it. Restore the file from a copy. If it was edited on purpose, remove that white space."},
    {"file/io", TSR_ERROR, "a file of the checkpoint cannot be opened or read",
     "Its permissions forbid it, or the storage fails. What could not be read was not checked."},
    {"file/unreadable", TSR_ERROR, "bytes of the checkpoint cannot be read or make no sense",
     "A data file is missing, truncated or on failing storage, or an item is damaged. Restore the file from a copy."},
    {"index/absent", TSR_NOTE, "several safetensors files without an index are read as one checkpoint",
     "Without model.safetensors.index.json, a lost file goes unnoticed. Next to transformers' config.json it is an error, since "
     "transformers does not load such files."},
    {"index/extra-key", TSR_WARNING, "a tensor is in a file but not in the index",
     "Readers that follow the index will not see it. Rewrite the index, or remove the tensor."},
    {"index/key-in-two-files", TSR_WARNING, "a tensor is in more than one file",
     "The copy that the index names is used. This is an error when the copies differ in dtype, shape or bytes."},
    {"index/missing-file", TSR_ERROR, "a file that the index names is missing",
     "The download or copy was incomplete. Fetch the named file again."},
    {"index/missing-key", TSR_ERROR, "a tensor is not in the file that the index names for it",
     "The index and the files come from different versions of the checkpoint. Fetch both again."},
    {"index/other-model", TSR_WARNING, "a directory contains a model in another form, which is not read",
     "As transformers does, the first of model.safetensors, its index, pytorch_model.bin and its index is read; diffusers and "
     "PEFT prefer safetensors, too, and diffusers the index. Remove what is out of date, or name the file that is meant."},
    {"index/total-size", TSR_WARNING, "the index's total_size is not the sum of its tensors' bytes",
     "The index was written by hand, or the files were replaced afterwards. No data is lost."},
    {"index/unreferenced-file", TSR_WARNING, "a safetensors file next to the index is not named in it",
     "The file was left over from an earlier save, or the index lost a line."},
    {"layout/bytes-shared", TSR_ERROR, "two tensors claim the same bytes of a file",
     "In this format every item has its own bytes. The metadata was edited, or it belongs to other data files."},
    {"layout/chunks", TSR_ERROR, "a tensor is split into chunks that differ from the layout",
     "The sharding changed (mesh, placements, world size). Write a new layout if the change is intended."},
    {"layout/digest", TSR_ERROR, "the values of an entry do not match the digest in the layout",
     "The values were changed or damaged. To see where, run `tessera diff --values` against the checkpoint that the layout "
     "was made from."},
    {"layout/dtype", TSR_ERROR, "a tensor has a different dtype than in the layout",
     "Write a new layout if the change is intended."},
    {"layout/empty-chunk", TSR_NOTE, "an empty chunk is not where a rank without elements would have it",
     "Ranks that hold nothing of a tensor normally have an empty chunk at its end. This is harmless by itself."},
    {"layout/hole", TSR_ERROR, "elements of a tensor are not covered by any chunk",
     "A rank's shard was lost or never saved, and PyTorch would load uninitialized memory in its place. Save the checkpoint "
     "again, or restore the missing file."},
    {"layout/kind", TSR_ERROR, "an entry is a tensor where the layout has an object, or vice versa",
     "Write a new layout if the change is intended."},
    {"layout/missing-entry", TSR_ERROR, "an entry of the layout is not in the checkpoint",
     "The entry was renamed or not saved. Write a new layout if the change is intended."},
    {"layout/not-hashed", TSR_NOTE, "values without a digest in the layout were not compared",
     "Layouts have digests only for dense tensors, and for objects that contain no tensors or sets. Compare quantized and "
     "sparse tensors and other objects with `tessera diff --values`."},
    {"layout/out-of-range", TSR_ERROR, "a chunk reaches beyond its tensor",
     "The metadata is damaged, or the tensor's shape and its chunks come from different saves."},
    {"layout/overlap", TSR_ERROR, "two chunks of a tensor hold the same elements",
     "Which of the two is loaded depends on the reader. Two jobs may have saved to the same directory."},
    {"layout/placeholders", TSR_WARNING, "many tensors are empty, as parameters that were not gathered",
     "A rank has an empty tensor in place of each parameter that other ranks hold, under ZeRO stage 3 of nearly every one. Open "
     "the directory with the files of all ranks, or save a full or sharded state dict."},
    {"layout/prefix", TSR_NOTE, "nearly all names would fit if a prefix were added or removed",
     "The checkpoint holds a whole training state (model.…), or was saved from inside a wrapper (module.…), and the model was "
     "described by itself, or vice versa."},
    {"layout/replica-differs", TSR_ERROR, "replicas of a shard differ",
     "Ranks diverged before saving, or files of different saves were mixed. Nothing in the checkpoint shows which replica "
     "is right."},
    {"layout/shape", TSR_ERROR, "a tensor has a different shape than in the layout",
     "Write a new layout if the change is intended."},
    {"layout/too-large", TSR_ERROR, "a tensor is impossibly large",
     "The tensor has more than 64 dimensions or 2^64 elements: the metadata is damaged."},
    {"layout/unexpected-entry", TSR_ERROR, "an entry of the checkpoint is not in the layout",
     "The entry is new or was renamed. Write a new layout if the change is intended."},
    {"limits/expansion", TSR_WARNING, "a tensor is more than 1,024 times as large as its stored bytes",
     "Strides of 0, overlapping strides, or many chunks that share bytes let a file of one kilobyte contain a tensor of "
     "2^40 elements. Such tensors are listed. When they exceed 1 GiB together, reading their values requires "
     "--allow-expansion. Save `tensor.clone()`, or the small tensor that was expanded."},
    {"megatron/shards", TSR_ERROR, "some shards of an object are missing",
     "Megatron-Core stores an object per rank, layer or expert under the name KEY/shard_I_N. If one of them is missing, the "
     "list cannot be assembled. Save the checkpoint again."},
    {"optim/ids-are-texts", TSR_WARNING, "an optimizer's state has texts as keys where its param groups list ints",
     "A program wrote the ids 0, 1, … as \"0\", \"1\", …, as a DCP does. Optimizer.load_state_dict accepts the file and gives no "
     "parameter its state. `tessera optim to-id` writes the optimizer with ints as keys."},
    {"optim/state-incomplete", TSR_ERROR, "a parameter lacks a state that other parameters of its group have",
     "Adam needs exp_avg and exp_avg_sq of every parameter that it has updated, and max_exp_avg_sq with amsgrad. The next step of "
     "the optimizer would fail. A rank's state was lost, or a program removed it: use an earlier checkpoint."},
    {"optim/state-missing", TSR_NOTE, "parameters of a group have no state, while others have it",
     "Frozen parameters have none, and neither have those that never got a gradient, so this is often as it should be. The "
     "optimizer starts from zero with such parameters."},
    {"optim/state-shape", TSR_ERROR, "a state of the optimizer has another shape than its parameter",
     "The parameter was resized after the optimizer had been created, or the optimizer belongs to another model. This is a warning "
     "where the param group has options that PyTorch's own optimizers lack: GaLore and others keep smaller states on purpose."},
    {"parts/frozen-weights", TSR_NOTE, "frozen weights are left out of the part 'model'",
     "DeepSpeed's ZeRO 1 stores frozen weights only in the module, and zero_to_fp32 leaves them out. `--part module` "
     "contains them as stored."},
    {"parts/incomplete-save", TSR_ERROR,
     "the save was interrupted, or files were not copied: the checkpoint is not marked as complete",
     "Copy the named files from where the checkpoint was written, or use an earlier checkpoint. `tessera repair` rebuilds a "
     "lost .metadata of a DCP checkpoint."},
    {"parts/left-out", TSR_WARNING, "files or directories with a checkpoint are not among the parts",
     "The Trainer of transformers writes the weights next to the directory in which DeepSpeed keeps its own, with the float32 "
     "weights and the optimizer states. Training scripts save further models next to accelerate's files. Open what is left out by "
     "its path, or a directory with `--step`."},
    {"parts/one-of-several", TSR_WARNING, "a file is one of several that make up a checkpoint",
     "Its name states how many there are, as in model-00001-of-00003.safetensors. Open the directory with all of them, or their "
     "index."},
    {"parts/passed-over", TSR_WARNING, "a newer checkpoint has errors, so --step latest-valid opens an older one",
     "Its save was interrupted or is not finished, or its files were damaged since. Run `tessera validate` on it."},
    {"parts/stages-differ", TSR_WARNING, "stages of a pipeline hold different values under one name",
     "DeepSpeed's tied layers share the weights that are tied. Whatever else the layer has, each stage trains for itself. The first "
     "stage's values keep the name; those of later stages are listed under `mp_rank_NN.`."},
    {"parts/tied-modules", TSR_NOTE, "second names of tied modules are left out of the part 'model'",
     "If a module has two names, DeepSpeed lists only the first, and zero_to_fp32 leaves out the second. The weights are there "
     "under the first name."},
    {"parts/unchecked-save", TSR_NOTE, "nothing in the files shows whether they are of the same save",
     "ZeRO 3 stores the weights only in the optimizer files, and each rank stores its own share, so there are no values to "
     "compare. Optimizers such as SGD do not count steps. Without ZeRO, files of experts do not state a step. If a file may have "
     "been mixed up, load the checkpoint and evaluate the model."},
    {"parts/unnamed-states", TSR_NOTE, "the optimizer's states cannot be matched with parameter names",
     "The optimizer numbers its parameters, and several of them have the same shape. The states are listed by number, in "
     "the order of the optimizer's param groups. A single param group of all parameters is assumed to be in the order of "
     "model.parameters(), and its states are named by it."},
    {"pickle/trailing-bytes", TSR_WARNING, "bytes follow the end of a pickle",
     "PyTorch stops at the end of the pickle and never reads them, but another program may. They are not part of the "
     "checkpoint. Save the file again to remove them."},
    {"pickle/unlisted-call", TSR_ERROR, "loading the pickle would call something that is not known to be harmless",
     "torch.load(weights_only=False) would make this call. Tessera never does. Save plain tensors and containers "
     "instead; of an enum, the value."},
    {"pickle/unlisted-class", TSR_WARNING, "the pickle contains or names a class that is not known to be harmless data",
     "torch.load(weights_only=True) refuses such files. Tessera shows what the object contains and imports nothing. This is "
     "an error if the module can run programs, import code, or access files or the network: such a name does not belong in "
     "a checkpoint."},
    {"pickle/unloadable", TSR_ERROR, "PyTorch cannot load the pickle",
     "torch.load(weights_only=False) raises an exception at this place. The file was damaged, or changed by something other "
     "than torch.save. Tessera shows whatever can be read."},
    {"repair/lost", TSR_ERROR, "an item that another checkpoint of the job has, or a tensor that the file names, is missing",
     "Its bytes are gone. Restore the file from a copy. What is left can still be loaded."},
    {"repair/no-item", TSR_ERROR, "a data file ends with an incomplete item",
     "The file was truncated or overwritten. Restore it from a copy."},
    {"repair/unlike", TSR_ERROR, "the items of a data file do not match those of the other checkpoint",
     "The other checkpoint comes from a different job, number of ranks or set of options. Pass one of the same job with "
     "--like."},
    {"repair/unnamed", TSR_WARNING, "items were found whose names are unknown",
     "Data files contain no names. Pass a checkpoint of the same job with --like; otherwise the items are named after their "
     "file and number."},
    {"safetensors/crc", TSR_ERROR, "a file's bytes do not match the CRC-32 in its header",
     "The bytes changed after Tessera wrote the file: tessera.crc32, the last key of its __metadata__, has the CRC-32 of the whole file "
     "with zeros for its eight digits. Restore the file from a copy."},
    {"safetensors/duplicate-metadata-key", TSR_WARNING, "__metadata__ contains a key twice",
     "The last value is used, as in the reference library. Another reader may use the first."},
    {"safetensors/empty-name", TSR_WARNING, "a tensor's name is empty",
     "The reference library accepts it, but few programs can load it."},
    {"safetensors/leading-space", TSR_WARNING, "white space before the header's '{'",
     "Earlier versions of the library refuse the file. Write the file again."},
    {"safetensors/metadata-differs", TSR_NOTE, "a key of __metadata__ is not the same in all files",
     "It is not part of the checkpoint's metadata, so converting the files to other safetensors files leaves it out."},
    {"safetensors/metadata-null", TSR_WARNING, "__metadata__ is null",
     "The format requires an object of strings. The reference library treats null as no metadata."},
    {"safetensors/misaligned", TSR_NOTE, "tensors do not begin at a multiple of their element's size",
     "On some machines such tensors cannot be used in place through a memory map. `tessera convert` writes aligned files."},
    {"safetensors/no-tensors", TSR_NOTE, "there is not a single tensor",
     "Such a file is valid, but a model that was saved is not empty. Check what was selected when it was written."},
    {"safetensors/nul-in-name", TSR_WARNING, "a tensor's name contains a NUL character",
     "C programs end the name there, so two tensors may appear to have the same name."},
    {"safetensors/trailing-bytes", TSR_ERROR, "bytes follow the last tensor",
     "The reference library refuses such a file. The header does not belong to this data, or something was appended."},
    {"safetensors/truncated", TSR_ERROR, "the file ends before its last tensor does",
     "The download or copy was incomplete. Fetch the file again."},
    {"safetensors/unknown-field", TSR_WARNING, "a tensor has a field that the format does not define",
     "The field is ignored. The file has a newer format, or its writer made a mistake."},
    {"torch/dtensor", TSR_WARNING, "the position of a DTensor in its tensor cannot be determined",
     "It is listed as an opaque object. Partial values must be reduced before they are saved as a tensor."},
    {"torch/rank-differs", TSR_ERROR, "a tensor that is not sharded differs between ranks",
     "If other tensors are sharded, the files come from different runs or steps. If no tensor is sharded, each rank's file "
     "holds its own part of the model, and this is only a note: nothing in the files states how the parts are joined. "
     "Pass `--shards` to state it. Without it, such tensors can be listed but not read."},
    {"torch/rank-missing", TSR_ERROR, "the file of a rank is missing",
     "Its shard of every sharded tensor is lost. Copy the file from the machine that wrote it."},
    {"torch/rank-object", TSR_NOTE, "an object differs between the files of the ranks",
     "This is usual for the states of random number generators. A conversion keeps the object of the lowest rank."},
    {"torch/rank-twice", TSR_ERROR, "two files come from the same rank",
     "The directory contains files of different saves. Keep those of one save."},
    {"torch/slice-of-storage", TSR_NOTE, "a tensor is a small part of a storage that the file contains whole",
     "torch.save writes the whole storage of a tensor, and loading takes its memory. `tessera convert` leaves out the rest; before a "
     "save, tensor.clone() does."},
    {"torch/version", TSR_ERROR, "PyTorch does not accept the version or alignment that the archive states",
     "PyTorch reads archives whose member 'version' is 1 to 10 and whose member '.storage_alignment' is a number. Save the "
     "file again, or load it with the PyTorch that wrote it."},
    {"values/bool", TSR_WARNING, "a bool tensor has bytes other than 0 and 1",
     "Programs differ in how they interpret such a byte. Save the tensor again from bool values."},
    {"values/nan", TSR_NOTE, "a tensor contains NaN or infinite values",
     "Training diverged, or the values are not meant as numbers. The file itself is intact."},
    {"zip/around-members", TSR_ERROR, "the bytes between an archive's members changed after it was written",
     "Headers, padding or the directory are damaged. The values may be intact, but other readers may fail. Restore the file from a "
     "copy, or convert it again."},
    {"zip/crc", TSR_ERROR, "a member's bytes do not match its CRC-32",
     "The bytes changed after they were written, or the writer stored a wrong checksum. Restore the file from a copy."},
    {"zip/crc-absent", TSR_NOTE, "the archive was written without checksums",
     "torch.serialization.set_crc32_options(False) writes 0 for every CRC, and torch.serialization.skip_data for those of "
     "the storages. Damage to such files goes unnoticed."},
    {NULL, TSR_NOTE, NULL, NULL}, /* ends the list for tsr_suggest */
};

enum { RULES = sizeof rules / sizeof rules[0] - 1 };
_Static_assert(RULES <= TSR_MAX_RULES, "findings are counted in arrays of TSR_MAX_RULES");

const tsr_rule *tsr_rules(size_t *count)
{
    *count = RULES;
    return rules;
}

const tsr_rule *tsr_rule_find(const char *id)
{
    size_t low = 0, high = RULES;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(rules[middle].id, id);
        if (order == 0) return &rules[middle];
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

const tsr_rule *tsr_rule_suggest(const char *wrong)
{
    for (size_t i = 0; i < RULES; i++) {
        if (strcmp(strchr(rules[i].id, '/') + 1, wrong) == 0) return &rules[i]; /* the area was omitted */
    }
    const char *meant = tsr_suggest(wrong, rules, sizeof *rules);
    return meant ? tsr_rule_find(meant) : NULL;
}
