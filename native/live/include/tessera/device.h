/* The kinds of memory that tensors can be in. A NULL tsr_device is plain host memory; a GPU's memory is accessed through a
 * table of functions, so a program without a GPU does not link any GPU code.
 *
 * Copies of one device run in the order in which they were requested. They may still be running when the function returns, so
 * do not touch the host side of a copy before `synchronize`. Thread rule: one thread at a time per device.
 *
 * Example:
 *
 *     void *memory;
 *     status = device->alloc(device, sizeof(float), &memory, &err);
 *     if (status == TSR_OK) status = device->from_host(device, memory, &(float){1}, sizeof(float), &err);
 *     if (status == TSR_OK) status = device->synchronize(device, &err); */
#ifndef TESSERA_DEVICE_H
#define TESSERA_DEVICE_H

#include "tessera/host.h"

TSR_API_BEGIN

typedef enum tsr_device_kind { TSR_DEVICE_HOST = 0, TSR_DEVICE_CUDA } tsr_device_kind;

typedef struct tsr_device tsr_device;
struct tsr_device {
    tsr_device_kind kind;
    uint32_t index; /* cuda:0 is 0 */
    /* `bytes` > 0. Contents are undefined. Errors: TSR_E_NOMEM. */
    tsr_status (*alloc)(tsr_device *device, uint64_t bytes, void **out, tsr_error *err);
    void (*free)(tsr_device *device, void *data, uint64_t bytes);
    /* Copy `bytes` bytes from the device to the host, from the host to the device, and from the device to itself. Errors that
     * occur later are those of `synchronize`. */
    tsr_status (*to_host)(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err);
    tsr_status (*from_host)(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err);
    tsr_status (*within)(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err);
    /* Waits for all copies requested so far and reports the first one that failed. */
    tsr_status (*synchronize)(tsr_device *device, tsr_error *err);
    /* Optional (both or neither): `pin` page-locks host memory, which makes copies faster, and `unpin` unlocks it. */
    tsr_status (*pin)(tsr_device *device, void *data, uint64_t bytes, tsr_error *err);
    void (*unpin)(tsr_device *device, void *data, uint64_t bytes);
};

TSR_API_END

#endif
