/* The kinds of memory that tensors can be in. A NULL tsr_device is plain host memory; a GPU's memory joins as a table of
 * functions, so that a program without one links nothing of it.
 *
 * Copies of one device are done in the order in which they were asked for. They may still be under way when the function
 * returns: the host side of a copy is only touched again after `synchronize`. Thread rule: one thread at a time a device.
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
    tsr_status (*to_host)(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err);
    tsr_status (*from_host)(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err);
    tsr_status (*within)(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err);
    /* Waits for every copy so far and reports the first that failed. */
    tsr_status (*synchronize)(tsr_device *device, tsr_error *err);
    /* Optional (both or none): makes host memory, page-locked, quick to copy from and to; and the end of it. */
    tsr_status (*pin)(tsr_device *device, void *data, uint64_t bytes, tsr_error *err);
    void (*unpin)(tsr_device *device, void *data, uint64_t bytes);
};

TSR_API_END

#endif
