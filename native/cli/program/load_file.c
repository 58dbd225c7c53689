/* Loads a whole file into memory. */
#include "cli/program/session.h"

#include "tessera/sys/path_store.h"

tsr_status cli_load_file(cli *program, const char *path, tsr_store **store, tsr_bytes *bytes, tsr_error *err)
{
    const tsr_host *host = cli_host(program);
    tsr_status status = tsr_document_store_open(host, cli_given_address(program, path), store, err);
    if (status != TSR_OK) return status;
    uint32_t file = (*store)->primary != TSR_NO_FILE ? (*store)->primary : 0;
    if ((*store)->primary == TSR_NO_FILE && (*store)->file_count != 1) {
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "'%s' is a directory; a file is expected", path);
    }
    return tsr_range_load((tsr_range){*store, file, 0, (*store)->files[file].size}, host, bytes, err);
}
