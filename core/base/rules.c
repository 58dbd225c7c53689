/* The table of all rules, sorted by id: what `validate --list-rules` and `explain` print. */
#include "tessera/findings.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/suggest.h"

#include <string.h>

static const tsr_rule rules[] = {
    {"dcp-safetensors/lone-shard", TSR_WARNING, "a file of sharded safetensors is read without the others",
     "Its tensors are shards; their shapes are the shards'. Name the folder with all shard files."},
    {"dcp-safetensors/no-global-shape", TSR_WARNING, "the global shapes of sharded safetensors are only inferred",
     "DCP's HuggingFaceStorageWriter stores where each shard lies but not how large the tensor is, so a lost trailing shard cannot be seen. Check against a layout (tessera validate --layout)."},
    {"dcp-safetensors/shard-gap", TSR_WARNING, "the numbers of the shard files leave a gap",
     "A file shard-NNNNN-model-… is missing from the sequence: copy it from where the checkpoint was written."},
    {"dcp/beyond-end", TSR_ERROR, "an item is placed beyond the end of its data file",
     "The data file is cut short or is not the one that was saved with this metadata. Restore it from a copy."},
    {"dcp/dead-bytes", TSR_NOTE, "bytes of a data file belong to no item",
     "Nothing reads them. They take room; data files of another save with the same name have them too."},
    {"dcp/duplicate-record", TSR_ERROR, "storage_data places the same chunk twice",
     "Which place counts depends on the reader. Save the checkpoint again."},
    {"dcp/item", TSR_ERROR, "an item of a data file cannot be read, or is not what the metadata says",
     "The data file is damaged, or the metadata belongs to another save. The message says what was found."},
    {"dcp/missing-file", TSR_ERROR, "a data file that the metadata names is not there",
     "Copy the whole folder, with the files of every rank."},
    {"dcp/newer", TSR_WARNING, "only a newer PyTorch than 2.13 loads the metadata",
     "It is not damaged. Load it with the version that wrote it, or convert it: Tessera writes what every supported version reads."},
    {"dcp/no-record", TSR_ERROR, "a chunk has no item in storage_data",
     "The metadata lists a chunk and does not say where its bytes are; it cannot be loaded."},
    {"dcp/path-outside", TSR_ERROR, "the metadata names a file outside the checkpoint's folder",
     "Absolute paths and '..' are never opened: a checkpoint from elsewhere could name any file of this machine."},
    {"dcp/record-without-chunk", TSR_ERROR, "storage_data places a chunk that the metadata does not list",
     "The chunk would never be loaded. Part of the metadata is lost, or it mixes two saves."},
    {"dcp/record-without-entry", TSR_ERROR, "storage_data places an item of an entry that the metadata does not list",
     "The item would never be loaded. Part of the metadata is lost, or it mixes two saves."},
    {"dcp/unreferenced-file", TSR_WARNING, "a file in the folder holds no item of the checkpoint",
     "Left over from another save or put there by another program; it is not read."},
    {"diff/added", TSR_ERROR, "an entry is only in the second of two checkpoints",
     "It came with the change, or the first checkpoint lost it."},
    {"diff/dtype", TSR_ERROR, "a tensor has another dtype in the second checkpoint",
     "It was cast, or another precision was saved."},
    {"diff/layout", TSR_ERROR, "a tensor is cut into other chunks in the second checkpoint",
     "Another world size or sharding saved it. Only looked for with --layout."},
    {"diff/object", TSR_ERROR, "an object has another value in the second checkpoint",
     "A step count, a learning rate or another setting changed."},
    {"diff/removed", TSR_ERROR, "an entry is only in the first of two checkpoints",
     "It was lost or renamed with the change."},
    {"diff/renamed", TSR_NOTE, "an entry of the first checkpoint may be another one of the second",
     "Same shape and dtype, and a name that is alike. `tessera convert --rename` renames."},
    {"diff/shape", TSR_ERROR, "a tensor has another shape in the second checkpoint",
     "The model changed, or a dimension was padded."},
    {"diff/value", TSR_ERROR, "a tensor has other values in the second checkpoint",
     "Training went on, or the bytes were changed. --atol and --rtol allow for rounding."},
    {"file/unreadable", TSR_ERROR, "bytes of the checkpoint cannot be read or make no sense",
     "A data file is missing, short or on failing storage, or an item is damaged. Restore the file from a copy."},
    {"index/absent", TSR_NOTE, "several safetensors files without an index are read as one checkpoint",
     "Without model.safetensors.index.json a lost file cannot be noticed."},
    {"index/extra-key", TSR_WARNING, "a tensor is in a file but not in the index",
     "Readers that go by the index will not see it. Write the index anew, or remove the tensor."},
    {"index/key-in-two-files", TSR_WARNING, "a tensor is in more files than one",
     "The copy that the index names counts. An error when dtype, shape or bytes of the copies differ."},
    {"index/missing-file", TSR_ERROR, "a file that the index names is not there",
     "The download or copy was not complete: fetch the named file again."},
    {"index/missing-key", TSR_ERROR, "a tensor is not in the file that the index names for it",
     "Index and files come from different versions of the checkpoint. Fetch both again."},
    {"index/total-size", TSR_WARNING, "the index's total_size is not the sum of its tensors' bytes",
     "Written by hand, or the files were replaced after the index. Nothing is lost by it."},
    {"index/unreferenced-file", TSR_WARNING, "a safetensors file lies beside the index without being named by it",
     "A remainder of an earlier save, or a lost line of the index."},
    {"layout/bytes-shared", TSR_ERROR, "two tensors claim the same bytes of a file",
     "Every item of this format has its own bytes: the metadata was edited, or belongs to other data files."},
    {"layout/chunks", TSR_ERROR, "a tensor is cut into other chunks than the layout says",
     "The sharding changed (mesh, placements, world size). Write a new layout if the change is meant."},
    {"layout/digest", TSR_ERROR, "the values of an entry are others than the layout's digest says",
     "The values changed, or were damaged. `tessera diff --values` against the checkpoint that the layout is of shows where."},
    {"layout/dtype", TSR_ERROR, "a tensor has another dtype than the layout says",
     "Write a new layout if the change is meant."},
    {"layout/empty-chunk", TSR_NOTE, "a chunk without elements lies where no rank's empty share would",
     "Ranks that get nothing of a tensor normally have an empty chunk at its end. Harmless by itself."},
    {"layout/hole", TSR_ERROR, "elements of a tensor are in no chunk",
     "A rank's part was lost or never saved; torch would load uninitialized memory there. Save again, or restore the "
     "missing file."},
    {"layout/kind", TSR_ERROR, "an entry is a tensor where the layout says object, or the other way round",
     "Write a new layout if the change is meant."},
    {"layout/missing-entry", TSR_ERROR, "an entry of the layout is not in the checkpoint",
     "It was renamed or not saved. Write a new layout if the change is meant."},
    {"layout/not-hashed", TSR_NOTE, "values that a layout with digests has none of were not compared",
     "Digests are of dense tensors and of objects without tensors or sets in them. Compare quantized and sparse tensors and "
     "other objects with `tessera diff --values`."},
    {"layout/out-of-range", TSR_ERROR, "a chunk reaches beyond its tensor",
     "The metadata is damaged, or the tensor's size and its chunks come from different saves."},
    {"layout/overlap", TSR_ERROR, "two chunks of a tensor hold the same elements",
     "Which of them counts would depend on the reader. Two jobs may have saved into one folder."},
    {"layout/replica-differs", TSR_ERROR, "copies of one part of a tensor are not equal",
     "Ranks diverged before saving, or files of different saves were mixed. Which copy is right cannot be told from here."},
    {"layout/shape", TSR_ERROR, "a tensor has another shape than the layout says",
     "Write a new layout if the change is meant."},
    {"layout/too-large", TSR_ERROR, "a tensor's size is beyond anything that can exist",
     "More than 64 dimensions or 2^64 elements: the metadata is damaged."},
    {"layout/unexpected-entry", TSR_ERROR, "an entry of the checkpoint is not in the layout",
     "It is new or was renamed. Write a new layout if the change is meant."},
    {"limits/expansion", TSR_WARNING, "a tensor is more than 1,024 times as large as what is stored of it",
     "Strides of 0, overlapping strides, or many chunks on the same bytes: a file of a kilobyte can hold a tensor of 2^40 elements. Such tensors are listed; once they are more than 1 GiB together, work on their values needs --allow-expansion. Save `tensor.clone()`, or the small tensor that was expanded."},
    {"megatron/shards", TSR_ERROR, "not all shards of an object are there",
     "Megatron-Core stores an object per rank, layer or expert under the name KEY/shard_I_N. With one of them missing the list cannot be put together. Save the checkpoint again."},
    {"parts/frozen-weights", TSR_NOTE, "frozen weights are left out of the part 'model'",
     "DeepSpeed's ZeRO 1 stores frozen weights in the module alone, and zero_to_fp32 leaves them out. `--part module` has them, as stored."},
    {"parts/incomplete-save", TSR_ERROR, "the save was interrupted, or files were not copied: what marks it as complete is missing",
     "Copy the named files from where the checkpoint was written, or take an earlier checkpoint. `tessera repair` rebuilds a lost .metadata of DCP."},
    {"parts/unnamed-states", TSR_NOTE, "the optimizer's states cannot be told apart by name",
     "The optimizer numbers its parameters, and several of them have one shape. The states are listed by number; the order is that "
     "of the optimizer's parameter groups."},
    {"pickle/trailing-bytes", TSR_WARNING, "bytes follow the end of a pickle",
     "PyTorch stops at the end of the pickle and never reads them, but another program may. They are not part of the checkpoint. Save "
     "the file again to be rid of them."},
    {"pickle/unlisted-call", TSR_ERROR, "loading the pickle would call something that is not known to be harmless",
     "torch.load(weights_only=False) would run this call. Tessera never does; save plain tensors and containers instead."},
    {"pickle/unlisted-class", TSR_WARNING, "the pickle holds or names a class that is not known to be harmless data",
     "torch.load(weights_only=True) refuses such files. Tessera shows the object's parts and imports nothing. It is an error "
     "where the module can run programs, import code, or reach files or the network: its name does not belong into a "
     "checkpoint."},
    {"pickle/unloadable", TSR_ERROR, "PyTorch cannot load the pickle",
     "torch.load(weights_only=False) raises an exception at this place. The file was damaged, or changed by something other "
     "than torch.save. Tessera shows what can be read of it."},
    {"repair/lost", TSR_ERROR, "an item that another checkpoint of the job has is not in the data files",
     "Its bytes are gone. Restore the data file from a copy; what is left can be loaded in part."},
    {"repair/no-item", TSR_ERROR, "bytes at the end of a data file are no whole item",
     "The file was cut short, or overwritten. Restore it from a copy."},
    {"repair/unlike", TSR_ERROR, "a data file's items are not those of the other checkpoint",
     "It was saved by another job, on another number of ranks, or with other options: name one of the same kind."},
    {"repair/unnamed", TSR_WARNING, "items were found whose names nothing tells",
     "Data files hold no names. Name a checkpoint of the same job with --like; else the items stand under their file and number."},
    {"safetensors/duplicate-metadata-key", TSR_WARNING, "__metadata__ has a key twice",
     "The last value counts, as in the reference library; another reader may take the first."},
    {"safetensors/empty-name", TSR_WARNING, "a tensor's name is empty",
     "The reference library accepts it; few programs can load it."},
    {"safetensors/leading-space", TSR_WARNING, "white space before the header's '{'",
     "Readers of earlier versions refuse the file. Write it again."},
    {"safetensors/metadata-null", TSR_WARNING, "__metadata__ is null",
     "The format wants an object of strings; the reference library takes null for none."},
    {"safetensors/misaligned", TSR_NOTE, "tensors do not begin at a multiple of their element's size",
     "Such tensors cannot be used in place by memory mapping on every machine. tessera convert writes aligned files."},
    {"safetensors/nul-in-name", TSR_WARNING, "a tensor's name holds a NUL character",
     "C programs cut the name there, so that two tensors may look like one."},
    {"safetensors/trailing-bytes", TSR_ERROR, "bytes behind the last tensor",
     "The reference library refuses such a file: the header does not belong to these data, or something was appended."},
    {"safetensors/truncated", TSR_ERROR, "the file ends before its tensors do",
     "The download or copy was not complete: fetch the file again."},
    {"safetensors/unknown-field", TSR_WARNING, "a tensor has a field that the format does not know",
     "The field is left out. A newer format, or a writer's mistake."},
    {"torch/dtensor", TSR_WARNING, "a DTensor's place in its tensor cannot be told",
     "It is listed as an opaque object. Partial values must be reduced before they are saved as a tensor."},
    {"torch/rank-differs", TSR_ERROR, "a tensor that is not sharded is not equal on all ranks",
     "Next to sharded tensors the files come from different runs or steps. Where no tensor is sharded, each rank's file holds "
     "its own part of the model: a note, because nothing in the files says how the parts are joined. `tessera inspect` "
     "lists what each rank holds; nothing else reads such a tensor."},
    {"torch/rank-missing", TSR_ERROR, "the file of a rank is not there",
     "Its part of every sharded tensor is lost. Copy the file from the machine that wrote it."},
    {"torch/rank-object", TSR_NOTE, "an object is not equal in the files of all ranks",
     "Usual for the states of random number generators. A conversion keeps the lowest rank's."},
    {"torch/rank-twice", TSR_ERROR, "two files come from one rank",
     "Files of different saves lie in one folder: keep those of one save."},
    {"torch/version", TSR_ERROR, "the archive says of itself what PyTorch does not accept",
     "PyTorch reads archives with a member 'version' of 1 to 10, and a number in '.storage_alignment'. Save the file again, or "
     "load it with the PyTorch that wrote it."},
    {"values/bool", TSR_WARNING, "a bool tensor has bytes other than 0 and 1",
     "Programs differ in what they take such a byte for. Save the tensor again from bool values."},
    {"values/nan", TSR_NOTE, "a tensor holds NaN or infinite values",
     "Training diverged, or the values mean something else than numbers. Harmless to the container."},
    {"zip/crc", TSR_ERROR, "a member's bytes do not match its CRC-32",
     "The bytes changed after they were written, or the writer stored a wrong checksum. Restore the file from a copy."},
    {"zip/crc-absent", TSR_NOTE, "an archive was written without checksums",
     "torch.serialization.set_crc32_options(False) writes 0 for every CRC; damage to such files cannot be seen."},
    {NULL, TSR_NOTE, NULL, NULL}, /* for tsr_suggest */
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
        if (strcmp(strchr(rules[i].id, '/') + 1, wrong) == 0) return &rules[i]; /* the area was left out */
    }
    const char *meant = tsr_suggest(wrong, rules, sizeof *rules);
    return meant ? tsr_rule_find(meant) : NULL;
}
