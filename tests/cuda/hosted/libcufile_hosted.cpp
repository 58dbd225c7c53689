/* libcufile.so.0 for tests: GPUDirect Storage's functions that native/live/cuda finds by name, by pread and the hosted runtime.
 * Reads are short now and then, as cuFile's may be. */
#include <cuda_runtime_api.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <set>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

typedef struct CUfileError {
    int err, cu_err;
} CUfileError_t;
typedef struct CUfileDescr_t {
    int type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *fs_ops;
} CUfileDescr_t;
typedef void *CUfileHandle_t;

namespace
{
std::set<int *> handles;
bool is_open;
int open_result, enter_result;
long fail_read = -1, reads;
} // namespace

API void hosted_cufile_fail(int on_open, int on_register, long read)
{
    open_result = on_open;
    enter_result = on_register;
    fail_read = read;
    reads = 0;
}

API unsigned long hosted_cufile_handles(void)
{
    return handles.size();
}

API long hosted_cufile_reads(void)
{
    return reads;
}

API CUfileError_t cuFileDriverOpen(void)
{
    is_open = open_result == 0;
    return {open_result, 0};
}

API CUfileError_t cuFileHandleRegister(CUfileHandle_t *handle, CUfileDescr_t *description)
{
    if (!is_open || description->type != 1 || enter_result) return {enter_result ? enter_result : 5001, 0};
    int *made = new int(dup(description->handle.fd));
    handles.insert(made);
    *handle = made;
    return {0, 0};
}

API void cuFileHandleDeregister(CUfileHandle_t handle)
{
    if (handles.erase((int *)handle) == 0) abort();
    close(*(int *)handle);
    delete (int *)handle;
}

API ssize_t cuFileRead(CUfileHandle_t handle, void *to, size_t size, off_t offset, off_t offset_there)
{
    if (!handles.count((int *)handle)) return -5022;
    if (reads++ == fail_read) return -5;
    if (size > 1000 && reads % 3 == 0) size = size / 2 + 1;
    std::vector<char> bytes(size);
    const ssize_t got = pread(*(int *)handle, bytes.data(), size, offset);
    cudaStream_t stream;
    if (got <= 0) return got;
    if (cudaStreamCreateWithFlags(&stream, 0) != cudaSuccess) return -1;
    cudaMemcpyAsync((char *)to + offset_there, bytes.data(), (size_t)got, cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return got;
}
