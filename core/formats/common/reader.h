/* What each format's reader fills in, and the seam between them and tsr_checkpoint_open (formats/recognize/open.c). */
#ifndef TSR_FORMATS_COMMON_READER_H
#define TSR_FORMATS_COMMON_READER_H

#include "tessera/checkpoint.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/checkpoint_bytes.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/vec.h"

struct tsr_checkpoint {
    tsr_store *store;
    tsr_store *given;   /* to tsr_checkpoint_open; another one where a step was chosen */
    tsr_vec entered;    /* of tsr_store *: opened below `given` on the way to `store`, closed with the checkpoint */
    tsr_str step;       /* the way from `given` to `store`, in the arena; empty: they are one */
    const char *step_marker; /* the file that named it, or NULL */
    const tsr_host *host;
    tsr_arena *arena;
    tsr_findings *findings;
    tsr_open_options options;
    /* The files that recognition chose, in order (numbers in names by value): the one file, the index, the shards, the rank
     * files. For dcp: the metadata file or files. Chosen by content; other files of the store may be anything. */
    const uint32_t *files;
    uint32_t file_count;
    const uint32_t *file_ranks; /* the rank of each of `files`, which are in order of ranks; NULL: their names tell */
    uint32_t stages;            /* pipeline stages that the ranks are of; 0: not known, which counts as one */
    uint32_t joined_ranks;      /* of which every entry has a per_rank table, for a map of shards to join (rank_entries.h); or 0 */
    const uint32_t *listed; /* the files that are there of those that an index names */
    uint32_t listed_count;
    tsr_catalog catalog;
    struct tsr_name_index *index; /* FQN → entry; built by open.c after the reader is done */
    const struct tsr_reader *reader;
    void *state;           /* the reader's own, in the arena */
    tsr_str incomplete;    /* why the save counts as interrupted, in the arena; empty: it does not */
    bool is_probe;         /* only its format is asked for: what lies below it is of no interest */
    bool names_unknown;    /* only a missing file has the names of the entries */
    tsr_vec missing;       /* of tsr_str: files that the metadata names and the store does not have */
    /* Of tsr_str: files that the form implies and the store does not have. Only of a checkpoint that was opened for its own
     * sake; otherwise it has no allocator. */
    tsr_vec implied;
    uint64_t expansion;    /* bytes that what the input shares may still expand to (expansion.h) */
};

typedef struct tsr_reader {
    tsr_format format;
    /* Forms in the table of formats/recognize/forms.c: whether the directory is one, by the files that the framework always
     * writes, and by their content where others write such names too. May set checkpoint->files. Errors: those of reading. */
    tsr_status (*recognizes)(tsr_checkpoint *checkpoint, bool *is, tsr_error *err);
    bool has_no_metadata; /* such a form never has a .metadata in its root: a directory with one is not asked about */
    bool is_rare; /* all but `recognizes` may be loaded on demand: tsr_host.load is called before (wasm/split.mjs reads this field) */
    /* Fills checkpoint->catalog and the findings; open.c refuses names that collide. Cleans up after itself when it fails:
     * `close` is called only after it succeeded. */
    tsr_status (*open)(tsr_checkpoint *checkpoint, tsr_error *err);
    /* NULL: chunks are raw, or their view is set. */
    tsr_status (*locate)(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                         tsr_view *out, tsr_error *err);
    tsr_status (*extents)(tsr_checkpoint *checkpoint,
                          tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx, tsr_error *err);
    void (*close)(tsr_checkpoint *checkpoint); /* or NULL: frees what is outside the arena */
    /* NULL: no CRCs are stated; else as tsr_checkpoint_crc, *out being zeroed. The chunk's file is there and its view, if
     * it has one, changes nothing. */
    tsr_status (*crc)(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                      tsr_stated_crc *out, tsr_error *err);
    /* What `locate` and `crc` say of a tensor's chunk without a view, by reading once; NULL: neither of them reads. */
    tsr_status (*find)(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                       tsr_found *out, tsr_error *err);
} tsr_reader;

/* tsr_checkpoint_open with a reader that is known, for the `count` files that are its (checkpoint->files). NULL: the store is
 * recognized. Options, ownership and errors as there. */
typedef struct tsr_form {
    const tsr_reader *reader;
    const uint32_t *files;
    uint32_t count;
} tsr_form;
tsr_status tsr_checkpoint_open_as(tsr_store *store, const tsr_host *host, const tsr_open_options *options, const tsr_form *form,
                                  tsr_checkpoint **out, tsr_error *err);

/* Notes a file that the metadata names and that is not there; copies the name. */
tsr_status tsr_checkpoint_lacks(tsr_checkpoint *checkpoint, tsr_str name, tsr_error *err);
/* Notes a file that such a checkpoint may have, for servers that list nothing, unless it is there; copies the name. Its absence is
 * not a finding. Does nothing for a checkpoint that is mounted in another one. */
tsr_status tsr_checkpoint_implies(tsr_checkpoint *checkpoint, tsr_str file, tsr_error *err);
/* Reports `parts/incomplete-save` at `file` (may be empty) and keeps the first message, which must live in the checkpoint's
 * arena, for tsr_checkpoint_require. An empty message is out of memory. */
tsr_status tsr_checkpoint_is_incomplete(tsr_checkpoint *checkpoint, tsr_str file, tsr_str message, tsr_error *err);

extern const tsr_reader tsr_reader_dcp;
extern const tsr_reader tsr_reader_dcp_safetensors;
extern const tsr_reader tsr_reader_safetensors;
extern const tsr_reader tsr_reader_safetensors_index;
extern const tsr_reader tsr_reader_safetensors_ranks;
extern const tsr_reader tsr_reader_torch_zip;
extern const tsr_reader tsr_reader_torch_legacy;
extern const tsr_reader tsr_reader_torch_ranks;
extern const tsr_reader tsr_reader_torch_index;
extern const tsr_reader tsr_reader_deepspeed;
extern const tsr_reader tsr_reader_deepspeed_universal;
extern const tsr_reader tsr_reader_megatron;

#endif
