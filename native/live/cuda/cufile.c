/* GPUDirect Storage with the C API of libcufile. The library is opened with dlopen, not linked. The parts of its interface
 * that are used have not changed since its first release. They are declared here, so its header is not needed. */
#include <sys/types.h>

#include "io/sys.h"
#include "live/cuda/backend.h"

#include "tessera/sys/containers.h"

#ifdef TSR_HAVE_CUFILE_H
#include <cufile.h>
#else
typedef struct CUfileError {
    int err; /* 0: success */
    int cu_err;
} CUfileError_t;
typedef struct CUfileDescr_t {
    enum CUfileFileHandleType { CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1 } type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *fs_ops;
} CUfileDescr_t;
typedef void *CUfileHandle_t;

CUfileError_t cuFileDriverOpen(void);
CUfileError_t cuFileHandleRegister(CUfileHandle_t *handle, CUfileDescr_t *description);
void cuFileHandleDeregister(CUfileHandle_t handle);
ssize_t cuFileRead(CUfileHandle_t handle, void *to, size_t size, off_t offset, off_t offset_there);
#endif

typedef struct cufile {
    tsr_gpu *gpu;
    void *library;
    __typeof__(&cuFileDriverOpen) open;
    __typeof__(&cuFileHandleRegister) enter;
    __typeof__(&cuFileHandleDeregister) leave;
    __typeof__(&cuFileRead) read;
} cufile;

static tsr_status open_library(cufile *c, tsr_error *err)
{
    static const char *const names[] = {"libcufile.so.0", NULL};
    const tsr_library_call calls[] = {{"cuFileDriverOpen", &c->open},
                                      {"cuFileHandleRegister", &c->enter},
                                      {"cuFileHandleDeregister", &c->leave},
                                      {"cuFileRead", &c->read}};
    TSR_TRY(tsr_library_open(names, calls, sizeof calls / sizeof *calls, &c->library, err));
    TSR_TRY(tsr_cuda_use(c->gpu, err));
    const int code = (int)c->open().err;
    return code == 0 ? TSR_OK
                     : tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "cufile: the driver cannot be opened (%d)", code);
}

static void close_direct(void *ctx)
{
    cufile *c = ctx;
    if (c->library) dlclose(c->library); /* the library's driver is closed when the process ends */
    tsr_free(c->gpu->host->allocator, c, 1, sizeof *c);
}

static tsr_status read_direct(void *ctx, int fd, uint64_t offset, void *to, size_t size, tsr_error *err)
{
    const cufile *c = ctx;
    CUfileDescr_t description;
    CUfileHandle_t handle;
    memset(&description, 0, sizeof description);
    description.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    description.handle.fd = fd;
    TSR_TRY(tsr_cuda_use(c->gpu, err));
    if (c->enter(&handle, &description).err != 0) return TSR_E_UNSUPPORTED;
    tsr_status status = TSR_OK;
    for (size_t at = 0; at < size && status == TSR_OK;) {
        const ssize_t got = c->read(handle, to, size - at, (off_t)(offset + at), (off_t)at);
        if (got <= 0)
            status = tsr_raise(err, TSR_E_IO, offset + at, "cufile: reading %zu bytes failed with %zd", size - at, got);
        else at += (size_t)got;
    }
    c->leave(handle);
    return status;
}

tsr_status tsr_gpu_pipe_use_direct(tsr_gpu_pipe *pipe, tsr_error *err)
{
    if (pipe->direct.read) return TSR_OK;
    if (!tsr_cuda_is(pipe->gpu))
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "cufile: not available on a simulated device");
    cufile *c = tsr_alloc(pipe->gpu->host->allocator, 1, sizeof *c, err);
    if (!c) return TSR_E_NOMEM;
    *c = (cufile){.gpu = pipe->gpu};
    const tsr_status status = open_library(c, err);
    if (status == TSR_OK) pipe->direct = (direct_reader){c, read_direct, close_direct};
    else close_direct(c);
    return status;
}
