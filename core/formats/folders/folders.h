/* Directories that training loops write: each framework's own files are mounted as parts. */
#ifndef TSR_FORMATS_FOLDERS_FOLDERS_H
#define TSR_FORMATS_FOLDERS_FOLDERS_H

#include "formats/parts/mount.h"

extern const tsr_reader tsr_reader_accelerate; /* before tsr_reader_trainer, whose files accelerate may write too */
extern const tsr_reader tsr_reader_accelerate_plain;
extern const tsr_reader tsr_reader_trainer;
extern const tsr_reader tsr_reader_verl;
extern const tsr_reader tsr_reader_lightning;
extern const tsr_reader tsr_reader_torch_checkpointing;

/* lightning.c: adds a finding for a DCP with Lightning's names but without meta.pt, which Lightning writes last. */
tsr_status tsr_check_lightning(tsr_checkpoint *checkpoint, tsr_error *err);

/* accelerate.c: adds a finding for accelerate's files next to the DeepSpeed checkpoint of a step, which are not among its parts. */
tsr_status tsr_check_accelerate(tsr_checkpoint *checkpoint, tsr_error *err);

/* files.c: looks for files and directories in the root by name. */
bool tsr_folder_has(const tsr_store *store, const char *name);
bool tsr_folder_has_directory(const tsr_store *store, const char *name);
/* The first of the names that is a file, or TSR_NO_FILE. The list ends with NULL. */
uint32_t tsr_folder_first(const tsr_store *store, const char *const *names);

/* Files named BEFORE, a number, and AFTER, sorted by the number. */
typedef struct tsr_numbered_file {
    uint64_t number;
    uint32_t file;
} tsr_numbered_file;
typedef struct tsr_numbered_files {
    tsr_numbered_file *items;
    uint32_t count;
} tsr_numbered_files;
/* The number in such a name; TSR_NO_NUMBER for any other. */
#define TSR_NO_NUMBER UINT64_MAX
uint64_t tsr_folder_number_in(tsr_str name, const char *before, const char *after);
/* The rank that a file of accelerate belongs to by its name, "pytorch_model_fsdp_rank1.bin" or "optimizer_0_rank1.bin"; otherwise
 * TSR_NO_NUMBER. */
uint64_t tsr_folder_rank_of(tsr_str name);
tsr_status tsr_folder_numbered(tsr_checkpoint *checkpoint, const char *before, const char *after, tsr_numbered_files *out,
                               tsr_error *err);

/* Begins the part `name` and mounts a file as its contents. */
tsr_status tsr_folder_mount_file(tsr_checkpoint *checkpoint, const char *name, uint32_t file, tsr_error *err);
/* Mounts one file per rank into the current part, below "rank_N". */
tsr_status tsr_folder_mount_ranks(tsr_checkpoint *checkpoint, const tsr_numbered_files *ranks, tsr_error *err);

/* Begins the part `name` and mounts the files of all ranks as one checkpoint. */
tsr_status tsr_folder_mount_joined(tsr_checkpoint *checkpoint, tsr_str name, const tsr_numbered_files *ranks,
                                   tsr_error *err);

/* ranks.c: reports ranks without a file in the current part; `files` are those named BEFORE, the rank, and AFTER. All files that
 * are one per rank show how many ranks there were. */
tsr_status tsr_folder_check_ranks(tsr_checkpoint *checkpoint, const char *before, const char *after,
                                  const tsr_numbered_files *files, tsr_error *err);
/* left_out.c: reports what looks like a checkpoint and was not mounted, unless a part was requested. If `only_files`, directories
 * are not looked at. */
tsr_status tsr_folder_report_left(tsr_checkpoint *checkpoint, bool only_files, tsr_error *err);

/* trainer_files.c: mounts the other files that the Trainer and accelerate write: scheduler, random states, and so on. Adds
 * a finding for DeepSpeed's checkpoint next to them, which is not among the parts. */
tsr_status tsr_folder_mount_rest(tsr_checkpoint *checkpoint, tsr_error *err);
/* Records files that such a directory may have (tsr_checkpoint_implies). The list ends with NULL. */
tsr_status tsr_folder_imply(tsr_checkpoint *checkpoint, const char *const *names, tsr_error *err);
/* The names that the Trainer's model may have, either as a file or as an index. Ends with NULL. */
extern const char *const tsr_trainer_models[];

#endif
