/* What each format's reader implements: the interface between the readers and tsr_checkpoint_open
 * (formats/recognize/open.c). */
#ifndef TSR_FORMATS_COMMON_READER_H
#define TSR_FORMATS_COMMON_READER_H

#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/store.h"

struct tsr_reader;

/* A format known in advance, and its files: the `count` given files are opened with the given reader, and become
 * checkpoint->files. */
typedef struct tsr_form {
    const struct tsr_reader *reader;
    const uint32_t *files;
    uint32_t count;
} tsr_form;

/* Works like tsr_checkpoint_open. If `form` is NULL, the format is recognized. */
typedef tsr_status tsr_open_fn(tsr_store *store, const tsr_host *host, const tsr_open_options *options, const tsr_form *form,
                               tsr_checkpoint **out, tsr_error *err);

struct tsr_checkpoint {
    tsr_store *store;
    tsr_store *given;           /* the store passed to tsr_checkpoint_open; differs from `store` when a step was chosen */
    tsr_vec entered;            /* of tsr_store *: opened below `given` on the way to `store`; closed with the checkpoint */
    tsr_str step;               /* path from `given` to `store`, in the arena; empty when they are the same */
    const char *step_marker;    /* the file that named the step, or NULL */
    bool took_latest;           /* options.step was "latest" */
    const tsr_host *host;       /* may be own_host, which ends with the checkpoint */
    const tsr_host *given_host; /* for what reads in announced order: it needs no threads that wait */
    tsr_host own_host;          /* `host`, if the store's threads read it instead of the given host's */
    tsr_arena *arena;
    tsr_findings *findings;
    tsr_open_options options;
    tsr_open_fn *opens; /* opens the checkpoints that this one consists of */
    /* The files that recognition chose, in order, with numbers in names compared by value: the one file, the index, the
     * shards, or the rank files. For dcp, the metadata file or files. They are chosen by content; the store may have any
     * other files, too. */
    const uint32_t *files;
    uint32_t file_count;
    const uint32_t *file_ranks; /* the rank of each of `files`, in ascending order; NULL when their names state it */
    uint32_t stages;            /* pipeline stages that the ranks belong to; 0 when unknown, which is treated as 1 */
    uint32_t joined_ranks;      /* every entry has a per_rank table of this many ranks, for a map of shards to join; or 0 */
    const uint32_t *listed;     /* those files named in an index that exist */
    uint32_t listed_count;
    tsr_catalog catalog;
    struct tsr_name_index *index; /* FQN → entry; built by open.c after the reader has filled the catalog */
    struct tsr_renamed *renamed;  /* what the reader's own entries became after opening (tsr_checkpoint_rename), or NULL */
    const struct tsr_reader *reader;
    void *state;        /* the reader's private data, in the arena */
    tsr_str incomplete; /* why the save counts as interrupted, in the arena; empty if it does not */
    bool is_probe;      /* only the format is wanted, so checkpoints further down are not looked for */
    bool names_unknown; /* the names of the entries are only in a file that is missing */
    tsr_vec missing;    /* of tsr_str: files that the metadata names and the store does not have */
    /* Of tsr_str: files that the format allows for and the store does not have. Only collected for the checkpoint that the
     * caller opened; for mounted ones it has no allocator. */
    tsr_vec implied;
    uint64_t expansion; /* bytes that shared parts of the input may still expand to (expansion.h) */
};

/* Sets `host`, `given_host` and, if needed, `own_host`. Where every read of `store` waits for a server, as many threads read as requests may be under
 * way; the host's own may be few. Borrows `host`. */
void tsr_checkpoint_take_host(tsr_checkpoint *checkpoint, const tsr_store *store, const tsr_host *host);

struct tsr_cast_losses;

/* How the files of a format are read. */
typedef struct tsr_reader {
    tsr_format format;
    bool is_rare;        /* its functions may be loaded on demand, by tsr_host.load (wasm/split.mjs reads this field) */
    bool is_interrupted; /* for what an interrupted save left */
    bool is_aside;       /* a file of this kind may be something next to checkpoints, such as a program's arguments */
    bool is_mapped;      /* the checkpoint is made from another one (core/mapping), and its state is a tsr_mapped */
    /* Fills checkpoint->catalog and the findings; open.c rejects names that collide. Cleans up after itself when it fails:
     * `close` is called only after `open` succeeded. */
    tsr_status (*open)(tsr_checkpoint *checkpoint, tsr_error *err);
    /* NULL when every chunk is raw bytes or has its view. */
    tsr_status (*locate)(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                         tsr_view *out, tsr_error *err);
    /* NULL when there is nothing to read. */
    tsr_status (*extents)(tsr_checkpoint *checkpoint,
                          tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                          tsr_error *err);
    void (*close)(tsr_checkpoint *checkpoint); /* frees what is outside the arena; or NULL */
    /* NULL when every file is stored. Otherwise returns the tensor from whose elements a file is computed, or NULL for a
     * file that is stored or has no such tensor. The chunks of that tensor may be in computed files, too. */
    const tsr_entry *(*input)(const tsr_checkpoint *checkpoint, uint32_t file);
    /* NULL when the format states no CRCs. Otherwise as tsr_checkpoint_crc, with *out zeroed. Called only if the chunk's
     * file exists and its view, if it has one, does not transform the bytes. */
    tsr_status (*crc)(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                      tsr_stated_crc *out, tsr_error *err);
    /* NULL when no elements are computed. Otherwise adds what casts lost since the last call, while elements of this tensor
     * were computed, to *losses. */
    void (*take_losses)(tsr_checkpoint *checkpoint, const tsr_entry *entry, struct tsr_cast_losses *losses);
    /* The results of both `locate` and `crc` for a tensor's chunk without a view, with a single read. NULL when neither of
     * them reads. */
    tsr_status (*find)(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                       tsr_found *out, tsr_error *err);
} tsr_reader;

/* The reader's own entry of an entry of the catalog: itself, unless entries were renamed after opening. */
const tsr_entry *tsr_checkpoint_stored_entry(const tsr_checkpoint *checkpoint, const tsr_entry *entry);

/* How the directories of a format are recognized, and what is checked of them. Each is a row of formats/recognize/format_table.c. All
 * hooks may be NULL, and fail only if reading fails, unless stated otherwise. */
typedef struct tsr_directory {
    const tsr_reader *reader;
    /* Names of files that the format always has: of each group at least one (tsr_has_any). A group ends with NULL, and so does
     * the list of groups. Or NULL. */
    const char *const *requires;
    /* Whether a directory with the required files is in this format. Decides by the files that the framework always writes, and
     * by their content if other programs use the same names. May set checkpoint->files. May fail with TSR_E_NOT_FOUND, about an
     * option. Without this hook, the required files decide. */
    tsr_status (*recognizes)(tsr_checkpoint *checkpoint, bool *is, tsr_error *err);
    /* Chooses a reader, and checkpoint->files, if the options ask for this format; called before anything else, and for files as
     * well. Leaves *reader alone otherwise. May fail because of the options. */
    tsr_status (*asked)(tsr_checkpoint *checkpoint, const tsr_reader **reader, tsr_error *err);
    /* The file in the root that completes a directory, whatever else is in it; its name can be given for the directory's. Or
     * NULL. */
    const char *marker;
    /* The ending of data files that cannot be opened without the marker, and what such a file is: "a data file of …; name …". Or
     * both NULL. */
    const char *data, *data_is;
    bool has_no_marker; /* never has the marker of another row in its root, so a directory that has one is not tested */
    /* Whether this framework, and no other program, writes files of this name, which is the last part of a path. A torch.save file
     * next to them is not the checkpoint. */
    bool (*writes)(tsr_str name);
    bool has_others; /* the framework also writes other formats, so next to their markers and data its names mean nothing */
    /* What a directory with such names contains if it is in no format: "files of …, but no …". Or NULL. */
    const char *lacking;
    /* After any checkpoint was opened: whether it is really in this format. If so, sets its reader, and what its catalog lacks. */
    tsr_status (*refines)(tsr_checkpoint *checkpoint, tsr_error *err);
    /* After any checkpoint was opened: adds findings about files of this framework. */
    tsr_status (*checks)(tsr_checkpoint *checkpoint, tsr_error *err);
} tsr_directory;

/* Files with the numbers in their names. */
typedef struct tsr_numbered_file {
    uint64_t number;
    uint32_t file;
    const tsr_reader *reader; /* for the file alone, where recognition lists what is in the root */
} tsr_numbered_file;
typedef struct tsr_numbered_files {
    tsr_numbered_file *items;
    uint32_t count;
} tsr_numbered_files;

/* A kind of file that holds tensors. Each is a row of formats/recognize/format_table.c. */
typedef struct tsr_file_kind {
    /* The reader for a file alone that begins with `head` and has `size` bytes; NULL if it is not of this kind. */
    const tsr_reader *(*reader_of)(tsr_str head, uint64_t size);
    const char
        *ending; /* of names for which `named` is read even if the content is unknown, so that it says what is wrong */
    const tsr_reader *named; /* or both NULL */
    const tsr_reader *index; /* for an index of several files */
    const char *reported;    /* the ending of files that this reader reports itself if its index does not name them */
    /* What a file is if its tensors are not those of a model, although it is of this kind; or NULL. */
    tsr_status (*foreign)(tsr_store *store, uint32_t file, const tsr_host *host, const char **foreign, tsr_error *err);
    /* Chooses the reader, and checkpoint->files, for a directory whose root has `files` of this kind and of no other. It is `alone`
     * if there is no marked directory below it. Leaves *reader alone if they are several checkpoints; what they are then is in
     * `several`. */
    tsr_status (*choose)(tsr_checkpoint *checkpoint, tsr_numbered_files *files, bool alone, const tsr_reader **reader,
                         tsr_error *err);
    const char *several;
} tsr_file_kind;

/* Records a file that the metadata names and the store does not have. Copies the name. */
tsr_status tsr_checkpoint_lacks(tsr_checkpoint *checkpoint, tsr_str name, tsr_error *err);
/* Records a file that a checkpoint of this format may have, unless the store has it; for servers that cannot list their
 * files. Its absence is not a finding. Does nothing for a checkpoint that is mounted in another one. Copies the name. */
tsr_status tsr_checkpoint_implies(tsr_checkpoint *checkpoint, tsr_str file, tsr_error *err);
/* Reports `parts/incomplete-save` at `file` (may be empty) and keeps the first message for tsr_checkpoint_require. `message`
 * must live in the checkpoint's arena; an empty one means that formatting it ran out of memory. */
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
extern const tsr_reader tsr_reader_torch_without_index;

extern const tsr_file_kind tsr_file_kind_safetensors;
extern const tsr_file_kind tsr_file_kind_torch;

extern const tsr_directory tsr_directory_dcp;
extern const tsr_directory tsr_directory_dcp_without_metadata;
extern const tsr_directory tsr_directory_deepspeed;
extern const tsr_directory tsr_directory_deepspeed_universal;
extern const tsr_directory tsr_directory_megatron;
extern const tsr_directory tsr_directory_megatron_begun;
extern const tsr_directory tsr_directory_lightning_lost;
extern const tsr_directory tsr_directory_shards;
extern const tsr_directory tsr_directory_accelerate_fsdp;
extern const tsr_directory tsr_directory_accelerate;
extern const tsr_directory tsr_directory_trainer;
extern const tsr_directory tsr_directory_verl;
extern const tsr_directory tsr_directory_lightning;
extern const tsr_directory tsr_directory_torch_checkpointing;
extern const tsr_directory tsr_directory_nemo;
extern const tsr_directory tsr_directory_automodel;
extern const tsr_directory tsr_directory_olmo;
extern const tsr_directory tsr_directory_prime;
extern const tsr_directory tsr_directory_diffusers;
extern const tsr_directory tsr_directory_sentence;

#endif
