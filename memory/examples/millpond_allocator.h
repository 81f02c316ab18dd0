/* The C interface of Millpond's memory layer: device memory in stream order.
 *
 *   void *p = millpond_alloc(bytes, device, stream);     valid for work on `stream` from now on
 *   ... launch work on `stream`, and on `other` behind an event ...
 *   millpond_record_stream(p, other);
 *   millpond_free(p, bytes, device, stream);             after everything that both streams hold by now
 *
 * Streams   CUDA's handles, of the device's primary context. Null is the legacy default stream; the per-thread default stream
 *           is refused. A stream lives until what was allocated on it or recorded for it is freed, or until
 *           millpond_forget_stream.
 * Errors    null or -1; millpond_last_error says why. The first few of a process are told on standard error, too.
 * Threads   any thread may call anything. The caller's current context and device are put back at the end of every call.
 * Options   MILLPOND_MEMORY_RESOURCE      cuda, cuda_async_default, cuda_async (the default), caching, arena, binning
 *           MILLPOND_MEMORY_LIMIT_BYTES   the most handed out per device; 0 is three quarters of what is free at first;
 *                                         unset, all there is
 */
#ifndef MILLPOND_ALLOCATOR_H
#define MILLPOND_ALLOCATOR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t and CUstream are pointers to it */

/* PyTorch's name of a pool of graphs: its std::pair<unsigned long long, unsigned long long>. */
typedef struct {
  uint64_t first;
  uint64_t second;
} millpond_graph_pool;

/* `size` bytes on `device` at a multiple of 256. Null for no bytes, and on failure. */
void *millpond_alloc(ssize_t size, int device, struct CUstream_st *stream);

/* Takes back what millpond_alloc gave; `size` and `device` must be the same as there. Null is nothing. */
void millpond_free(void *ptr, ssize_t size, int device, struct CUstream_st *stream);

/* Work on `stream` uses what lives at `ptr`: its free comes after what the stream holds by then. */
void millpond_record_stream(void *ptr, struct CUstream_st *stream);

/* Opens the driver and reads the options. Devices are opened when they are first allocated on. */
void millpond_init(int device_count);

/* Gives the unused memory of every device in use back. Blocks until they have finished what they have. */
void millpond_reset(void);

/* Limits what is handed out on a device to a share of its memory. Only before the device is first used. */
void millpond_memory_fraction(double fraction, int device);

/* Where the allocation at `ptr` begins; its bytes go to `size`, unless that is null. Null if nothing lives there. */
void *millpond_base_alloc(void *ptr, size_t *size);

/* Captures on the device are for this pool of graphs, until the end. `filter` is not looked at. */
void millpond_begin_allocate_to_pool(int device, millpond_graph_pool pool, const void *filter);
void millpond_end_allocate_to_pool(int device, millpond_graph_pool pool);

/* One graph of the pool is gone; with the last one its memory comes back. */
void millpond_release_pool(int device, millpond_graph_pool pool);

/* Gives unused memory of a device beyond `keep` bytes back. Returns how many bytes went, or -1. */
int64_t millpond_trim(int device, size_t keep);

/* Statistics of a device as a JSON object; of all in use, as a list, for -1. Writes what fits into `len` bytes, a zero at the
 * end included, and returns the length of all of it without the zero, or -1. */
int64_t millpond_stats_json(int device, char *text, size_t len);

/* The owner of a stream is about to destroy it. 0, or -1. */
int millpond_forget_stream(int device, struct CUstream_st *stream);

/* Every graph that was captured on the device is gone: what they were captured with comes back. 0, or -1. */
int millpond_release_graphs(int device);

/* What went wrong in the last call of this thread; null if nothing did. Valid until the thread's next call. */
const char *millpond_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
