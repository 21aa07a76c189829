/*
 * Octavo: a page cache in user space. Link with -loctavo (pkg-config octavo).
 *
 * Functions return OCTAVO_OK (0) or a negative OCTAVO_E*. Then octavo_error_message() has a sentence
 * for people, and errno the number of the system's error or the one nearest to it.
 *
 * Any thread may use any handle at any time, except a queue, which has one user at a time. Nobody
 * may use a handle during or after the call that frees it. A null handle is an invalid argument;
 * freeing one does nothing.
 *
 * Structs that the caller fills begin with their size. Set it, and zero what is not used:
 *
 *     octavo_cache_config config = { .size = sizeof config, .memory_max_bytes = 1 << 30 };
 *
 * In a child of fork, calls on the handles of the parent fail with OCTAVO_EFORK; freeing them, and
 * creating another cache, works.
 *
 * Offsets and lengths are in bytes. Strings are UTF-8 and end with a zero.
 *
 * This file is made from bindings/c/src. Do not edit it.
 */


#ifndef OCTAVO_H
#define OCTAVO_H


#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define OCTAVO_VERSION_MAJOR 0
#define OCTAVO_VERSION_MINOR 1


/**
 * The call succeeded.
 */
#define OCTAVO_OK 0

/**
 * The store failed; `octavo_error_errno` tells the system's error. After a failed write, the bytes
 * of the store in that range are unknown.
 */
#define OCTAVO_EIO -1

/**
 * The range reaches past the end of the object.
 */
#define OCTAVO_EPASTEND -2

/**
 * The object was opened read-only.
 */
#define OCTAVO_EREADONLY -3

/**
 * An earlier sync of the store failed, so the contents of the store are unknown: abandon the
 * object, check the store, and open it again.
 */
#define OCTAVO_EFAILED -4

/**
 * A memory limit leaves no room.
 */
#define OCTAVO_ENOMEMORY -5

/**
 * The object was closed.
 */
#define OCTAVO_ECLOSED -6

/**
 * This process is a child of `fork`, and its parent created the cache. Create another cache here.
 */
#define OCTAVO_EFORK -7

/**
 * An argument is invalid, or the system refused a resource. The message says which.
 */
#define OCTAVO_EINVALID -8

/**
 * A store could not be opened; `octavo_error_errno` tells the system's error, if there was one.
 */
#define OCTAVO_EOPEN -9

/**
 * Not done at once: the call would have to wait. No message.
 */
#define OCTAVO_EAGAIN -10

/**
 * A defect of Octavo. Please report it with the message. The objects of the call may be unusable.
 */
#define OCTAVO_EPANIC -11

/**
 * Nothing is logged.
 */
#define OCTAVO_LOG_OFF 0

/**
 * What lost data or may lose it.
 */
#define OCTAVO_LOG_ERROR 1

/**
 * What works less well than it should.
 */
#define OCTAVO_LOG_WARN 2

/**
 * What an operator may want to know.
 */
#define OCTAVO_LOG_INFO 3

/**
 * What helps to find defects.
 */
#define OCTAVO_LOG_DEBUG 4

/**
 * A write is acknowledged when the store has the bytes.
 */
#define OCTAVO_WRITETHROUGH 0

/**
 * A write is acknowledged when the page has the bytes; the store gets them later, or with a sync.
 */
#define OCTAVO_WRITEBACK 1

/**
 * The back end refuses writes.
 */
#define OCTAVO_BACKEND_READ_ONLY 1

/**
 * The back end takes `OCTAVO_IO_ZERO`.
 */
#define OCTAVO_BACKEND_ZEROES 2

/**
 * The back end takes `OCTAVO_IO_DISCARD`. The range reads as zeros afterwards.
 */
#define OCTAVO_BACKEND_DISCARDS 4

/**
 * Fill the buffers from the store.
 */
#define OCTAVO_IO_READ 0

/**
 * Write the buffers to the store.
 */
#define OCTAVO_IO_WRITE 1

/**
 * Make every write that was completed before durable.
 */
#define OCTAVO_IO_SYNC 2

/**
 * Make the range zeros.
 */
#define OCTAVO_IO_ZERO 3

/**
 * Make the range zeros, and free its space.
 */
#define OCTAVO_IO_DISCARD 4

/**
 * Refuses writes, and lets other readers open the file too.
 */
#define OCTAVO_OPEN_READ_ONLY 1

/**
 * Does not bypass the kernel's page cache.
 */
#define OCTAVO_OPEN_BUFFERED 2

/**
 * Takes no lock on the file, so others may change it meanwhile.
 */
#define OCTAVO_OPEN_NO_LOCK 4

/**
 * Forgets earlier advice.
 */
#define OCTAVO_ADVICE_NORMAL 0

/**
 * The object will be read in ascending order.
 */
#define OCTAVO_ADVICE_SEQUENTIAL 1

/**
 * The object will be read in random order.
 */
#define OCTAVO_ADVICE_RANDOM 2

/**
 * The range will be needed soon: its pages are read into the cache, as far as there is room.
 */
#define OCTAVO_ADVICE_WILLNEED 3

/**
 * The range will not be needed soon: its dirty pages are written back, and all are evicted.
 */
#define OCTAVO_ADVICE_DONTNEED 4

/**
 * Each page of the object will be used once.
 */
#define OCTAVO_ADVICE_NOREUSE 5

/**
 * Reads `len` bytes into `memory`.
 */
#define OCTAVO_OP_READ 0

/**
 * Writes `len` bytes of `memory`.
 */
#define OCTAVO_OP_WRITE 1

/**
 * Makes all acknowledged writes to the object durable.
 */
#define OCTAVO_OP_SYNC 2

/**
 * As `OCTAVO_OP_SYNC`, for a range.
 */
#define OCTAVO_OP_SYNC_RANGE 3

/**
 * Makes the range zeros; the store may free its space.
 */
#define OCTAVO_OP_DISCARD 4

/**
 * Makes the range zeros.
 */
#define OCTAVO_OP_ZERO 5

/**
 * Announces how the range will be used.
 */
#define OCTAVO_OP_ADVISE 6

/**
 * The request completes when its bytes are durable: of writes, discards and zeros.
 */
#define OCTAVO_REQUEST_DURABLE 1

/**
 * The request waited neither for a store nor for another thread. A read that has succeeded so is a
 * hit.
 */
#define OCTAVO_COMPLETION_AT_ONCE 1

/**
 * A cache with a hard limit on its memory. Any thread may use it.
 */
typedef struct octavo_cache octavo_cache;

/**
 * One I/O that a back end has to execute. Valid until `octavo_io_complete`. An I/O that is never
 * completed hangs.
 */
typedef struct octavo_io octavo_io;

/**
 * A file, a device or a back end that is open in a partition. Any thread may use it.
 */
typedef struct octavo_object octavo_object;

/**
 * The cache of a tenant, with a size, a policy and statistics of its own. Any thread may use it.
 */
typedef struct octavo_partition octavo_partition;

/**
 * A page that does not change and does not leave while the pin is held, whatever is written or
 * closed meanwhile. Any thread may use it, and free it.
 */
typedef struct octavo_pin octavo_pin;

/**
 * Requests in flight. One thread at a time may use it.
 */
typedef struct octavo_queue octavo_queue;

/**
 * Takes a line of the log. `level` is `OCTAVO_LOG_*`; `line` is valid during the call. Any thread
 * may call it, with locks of the cache held: it must not call the cache.
 */
typedef void (*octavo_log_function)(void *user, uint32_t level, const char *line);

/**
 * The configuration of a cache. Set `size`; zero in any other member means the default.
 */
typedef struct octavo_cache_config {
    /**
     * `sizeof(octavo_cache_config)`.
     */
    size_t size;
    /**
     * Hard limit on all memory, in bytes: pages, metadata, buffers in flight. Default: 64 MiB.
     */
    uint64_t memory_max_bytes;
    /**
     * Most bytes of the limit for buffers, rings and writes under way. Default: an eighth.
     */
    uint64_t buffers_max_bytes;
    /**
     * Segment size in bytes, the unit in which partitions grow and shrink: a power of two from
     * 32,768 to 1 GiB. Default: 2 MiB; smaller only for a tiny cache.
     */
    uint64_t segment_bytes;
    /**
     * Page size in bytes of partitions that set none of their own: a power of two from 4,096 to
     * 1,048,576. Default: 4,096.
     */
    uint32_t page_bytes;
    /**
     * Not zero: no thread writes dirty pages back or moves memory between partitions. Only syncs
     * write then.
     */
    uint32_t no_background;
    /**
     * How the cache uses NUMA nodes: "off" (the default), "partition", "message", "replicate" or
     * "auto".
     */
    const char *numa;
    /**
     * How I/O reaches files: "auto" (the default), "io_uring" or "blocking".
     */
    const char *io_engine;
} octavo_cache_config;

/**
 * The configuration of a partition. Set `size`; zero in any other member means the default.
 */
typedef struct octavo_partition_config {
    /**
     * `sizeof(octavo_partition_config)`.
     */
    size_t size;
    /**
     * The eviction policy: "octavo" (the default), "lru", "clock", "fifo", "lfu", "nrlfu", "car"
     * or "mq".
     */
    const char *policy;
    /**
     * `OCTAVO_WRITETHROUGH` (the default) or `OCTAVO_WRITEBACK`.
     */
    uint32_t cache_mode;
    /**
     * Page size in bytes: a power of two from 4,096 to 1,048,576. Default: the cache's.
     */
    uint32_t page_bytes;
    /**
     * Most bytes of pages and metadata. Default: no limit but the cache's.
     */
    uint64_t max_bytes;
    /**
     * Bytes of pages and metadata at the start, as far as they are available. Default:
     * `max_bytes`.
     */
    uint64_t start_bytes;
    /**
     * Guaranteed size in bytes: no memory below it moves to other partitions. Default: 0.
     */
    uint64_t min_bytes;
    /**
     * Protected size in bytes: memory below it moves only when every partition is at its own.
     * Default: 0.
     */
    uint64_t low_bytes;
    /**
     * Size in bytes beyond which the partition holds only memory that no other can use. Default:
     * none.
     */
    uint64_t high_bytes;
    /**
     * Most bytes of dirty pages. Default: 40 % of the pages.
     */
    uint64_t dirty_max_bytes;
    /**
     * Most bytes to read ahead of sequential reads at a time. Default: 0, no read-ahead.
     */
    uint64_t read_ahead_max_bytes;
    /**
     * Weight of the partition's misses against those of others: 1 to 10,000. Default: 100.
     */
    uint32_t weight;
    /**
     * Zero.
     */
    uint32_t reserved;
} octavo_partition_config;

/**
 * A point of a miss curve.
 */
typedef struct octavo_curve_point {
    /**
     * A size of the partition's pages, in bytes.
     */
    uint64_t bytes;
    /**
     * The estimated misses of recent page requests if the partition had this size. Older requests
     * count less.
     */
    double misses;
} octavo_curve_point;

/**
 * A store of the caller's own: a network volume, an object store, a compressed file. Set `size`,
 * and zero what is not used. The struct is copied; `user` must stay valid until `drop` is called.
 *
 * All functions may be called from any thread, several at a time, and run with locks of the cache
 * held: they must not call the cache. In a child of `fork` none is called.
 */
typedef struct octavo_backend {
    /**
     * `sizeof(octavo_backend)`.
     */
    size_t size;
    /**
     * Passed to each function.
     */
    void *user;
    /**
     * Sets `*len` to the length in bytes that the store has now. Returns 0, or a number such as
     * `EIO`.
     */
    int (*len)(void *user, uint64_t *len);
    /**
     * Starts an I/O and does not wait for it: `octavo_io_complete` may be called in here, or later
     * from any thread.
     */
    void (*submit)(void *user, struct octavo_io *io);
    /**
     * Changes the length; a longer store gains zeros. Returns 0, or a number such as `ENOSPC`, and
     * the length must then be the old one. May be null: the length cannot be changed.
     */
    int (*set_len)(void *user, uint64_t len);
    /**
     * Called once, when no I/O is in flight and the store is closed. May be null.
     */
    void (*drop)(void *user);
    /**
     * Bytes that tell this store from every other. Of the stores of a process with the same bytes,
     * only one can be open for writing in a cache. Copied. May be null.
     */
    const void *identity;
    /**
     * The number of these bytes.
     */
    size_t identity_len;
    /**
     * The unit of I/O in bytes: a power of two from 512 to 4,096. Default: 512.
     */
    uint32_t block_bytes;
    /**
     * `OCTAVO_BACKEND_*`.
     */
    uint32_t flags;
} octavo_backend;

/**
 * A request. Set `size`, and zero what is not used.
 */
typedef struct octavo_request {
    /**
     * `sizeof(octavo_request)`.
     */
    size_t size;
    /**
     * The caller's number, returned with the completion.
     */
    uint64_t user_data;
    /**
     * Offset in the object, in bytes.
     */
    uint64_t offset;
    /**
     * Length in bytes.
     */
    uint64_t len;
    /**
     * The memory of a read or a write. It belongs to the library until the request has completed.
     */
    void *memory;
    /**
     * `OCTAVO_OP_*`.
     */
    uint32_t op;
    /**
     * `OCTAVO_REQUEST_*`.
     */
    uint32_t flags;
    /**
     * `OCTAVO_ADVICE_*`, of `OCTAVO_OP_ADVISE`.
     */
    uint32_t advice;
    /**
     * Zero.
     */
    uint32_t reserved;
} octavo_request;

/**
 * A request that has ended.
 */
typedef struct octavo_completion {
    /**
     * `sizeof(octavo_completion)`: set in the first of an array.
     */
    size_t size;
    /**
     * The request's number.
     */
    uint64_t user_data;
    /**
     * `OCTAVO_OK`, or why the request failed. `octavo_error_message` has the message of the last
     * one that failed.
     */
    int32_t code;
    /**
     * The number of the system's error, as `octavo_error_errno`.
     */
    int32_t error;
    /**
     * `OCTAVO_COMPLETION_*`.
     */
    uint32_t flags;
    /**
     * Zero.
     */
    uint32_t reserved;
} octavo_completion;

/**
 * Statistics of a cache.
 */
typedef struct octavo_cache_stat {
    /**
     * `sizeof(octavo_cache_stat)`.
     */
    size_t size;
    /**
     * The memory limit, in bytes.
     */
    uint64_t memory_max_bytes;
    /**
     * Bytes charged to the limit.
     */
    uint64_t memory_charged_bytes;
    /**
     * The most for buffers, rings and writes under way, in bytes.
     */
    uint64_t buffers_max_bytes;
    /**
     * Bytes of it in use.
     */
    uint64_t buffers_used_bytes;
    /**
     * I/O rings, each with a descriptor.
     */
    uint64_t rings;
    /**
     * Queues.
     */
    uint64_t queues;
} octavo_cache_stat;

/**
 * Statistics of a partition. Hits and misses count pages of requests; `requests_*` count calls.
 */
typedef struct octavo_partition_stat {
    /**
     * `sizeof(octavo_partition_stat)`.
     */
    size_t size;
    /**
     * Pages of requests that were in the cache.
     */
    uint64_t hits;
    /**
     * Pages of requests that were not.
     */
    uint64_t misses;
    /**
     * Pages read from a store into the cache.
     */
    uint64_t fills;
    /**
     * Pages served without a place in the cache.
     */
    uint64_t bypasses;
    /**
     * Pages evicted to make room for another.
     */
    uint64_t evictions_capacity;
    /**
     * Pages evicted because the partition changed its size.
     */
    uint64_t evictions_resize;
    /**
     * Pages that left because their range was discarded or cut off, or their object closed.
     */
    uint64_t evictions_discard;
    /**
     * Pages that left because a write took another place.
     */
    uint64_t evictions_write;
    /**
     * Dirty pages written back.
     */
    uint64_t writebacks;
    /**
     * I/Os that wrote them.
     */
    uint64_t writeback_ios;
    /**
     * Pages that could not be read.
     */
    uint64_t read_errors;
    /**
     * Writes to stores that failed.
     */
    uint64_t write_errors;
    /**
     * Syncs that failed.
     */
    uint64_t sync_errors;
    /**
     * Misses of pages that were evicted a short time ago.
     */
    uint64_t ghost_hits;
    /**
     * Pages that were read ahead and then requested.
     */
    uint64_t ahead_used;
    /**
     * Pages that were read ahead and left unused.
     */
    uint64_t ahead_wasted;
    /**
     * Bytes of pages in the cache.
     */
    uint64_t resident_bytes;
    /**
     * Bytes of dirty pages.
     */
    uint64_t dirty_bytes;
    /**
     * Most bytes of dirty pages.
     */
    uint64_t dirty_max_bytes;
    /**
     * Bytes that there is room for.
     */
    uint64_t max_bytes;
    /**
     * Bytes of pages and metadata charged to the cache.
     */
    uint64_t charged_bytes;
    /**
     * Read requests.
     */
    uint64_t requests_read;
    /**
     * Write requests.
     */
    uint64_t requests_write;
    /**
     * Sync requests.
     */
    uint64_t requests_sync;
    /**
     * Bytes read by requests.
     */
    uint64_t read_bytes;
    /**
     * Bytes written by requests.
     */
    uint64_t written_bytes;
} octavo_partition_stat;

/**
 * Statistics of an object.
 */
typedef struct octavo_object_stat {
    /**
     * `sizeof(octavo_object_stat)`.
     */
    size_t size;
    /**
     * The object's length in bytes.
     */
    uint64_t len_bytes;
    /**
     * Bytes of its dirty pages.
     */
    uint64_t dirty_bytes;
    /**
     * Not zero: a sync of its store has failed (`OCTAVO_EFAILED`).
     */
    uint64_t failed;
} octavo_object_stat;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the message of this thread's last call that failed: a sentence, in English. Valid until
 * the thread's next call that fails.
 */
const char *octavo_error_message(void);

/**
 * Returns the number of the system's error (`ENOSPC`, ...) of this thread's last call that failed,
 * or the one nearest to it.
 */
int octavo_error_errno(void);

/**
 * Returns the name of a code, such as "OCTAVO_EIO".
 */
const char *octavo_error_name(int code);

/**
 * Returns the version of the library, such as "0.1.0".
 */
const char *octavo_version(void);

/**
 * Sends the library's log, up to a level, to a function; a null function ends that. At first, the
 * log goes nowhere. When this returns, an earlier function is not called any more.
 *
 * Errors: `OCTAVO_EINVALID` if there is no such level, or the process has another Rust logger.
 *
 * The caller promises:
 * Any thread may call `function`, with `user`, until another call replaces it.
 */
int octavo_set_log(uint32_t level, octavo_log_function function, void *user);

/**
 * Creates a cache. A null `config` stands for the default. On success, `*cache` is the caller's to
 * free.
 *
 * Errors: `OCTAVO_EINVALID`, `OCTAVO_ENOMEMORY`.
 *
 * The caller promises:
 * Strings end with a zero.
 */
int octavo_cache_new(const struct octavo_cache_config *config, struct octavo_cache **cache);

/**
 * Gives up a handle of a cache. The cache itself ends with the last handle of it or of anything in
 * it: partitions, objects, queues. Dirty pages that were not synced are lost with it.
 */
void octavo_cache_free(struct octavo_cache *cache);

/**
 * Writes all dirty pages of all partitions to their stores. Makes nothing durable.
 *
 * Errors: `OCTAVO_EIO`, `OCTAVO_EFORK`.
 */
int octavo_cache_clean(const struct octavo_cache *cache);

/**
 * Removes a partition that has no open objects. Its memory serves the others.
 *
 * Errors: `OCTAVO_EINVALID` if there is no such partition, or it has open objects.
 *
 * The caller promises:
 * `name` ends with a zero.
 */
int octavo_partition_remove(const struct octavo_cache *cache, const char *name);

/**
 * Creates a partition. `name` is unique in the cache. A null `config` stands for the default. On
 * success, `*partition` is the caller's to free.
 *
 * Errors: `OCTAVO_EINVALID`, `OCTAVO_ENOMEMORY`, `OCTAVO_EFORK`.
 *
 * The caller promises:
 * Strings end with a zero.
 */
int octavo_partition_new(const struct octavo_cache *cache,
                         const char *name,
                         const struct octavo_partition_config *config,
                         struct octavo_partition **partition);

/**
 * Gives up a handle of a partition. The partition stays in the cache: `octavo_partition_remove`
 * removes it.
 */
void octavo_partition_free(struct octavo_partition *partition);

/**
 * Changes the most bytes of pages and metadata; 0 takes the limit away. Evicts as many pages as it
 * must.
 *
 * Errors: `OCTAVO_EINVALID`, `OCTAVO_EIO` if dirty pages cannot be written, `OCTAVO_EFORK`.
 */
int octavo_partition_set_max(const struct octavo_partition *partition, uint64_t max_bytes);

/**
 * Makes all acknowledged writes to the objects of the partition durable.
 *
 * Errors: `OCTAVO_EIO`, `OCTAVO_EFAILED`, `OCTAVO_EFORK`.
 */
int octavo_partition_sync(const struct octavo_partition *partition);

/**
 * Writes dirty pages back, and evicts all pages that are not pinned.
 *
 * Errors: `OCTAVO_EIO`, `OCTAVO_EFORK`.
 */
int octavo_partition_evict(const struct octavo_partition *partition);

/**
 * Estimates a partition's recent misses at other sizes, smallest size first. Fills at most `most`
 * points. `*count` becomes the number of points that there are: call it with `most` 0 to learn it,
 * or with 64 at once. `*references` (may be null) becomes the number of page requests that the
 * misses are a part of. There are no points until enough requests were made, and for policies that
 * learn nothing.
 *
 * Errors: `OCTAVO_EINVALID`.
 *
 * The caller promises:
 * `points` has room for `most` points, or is null and `most` is 0.
 */
int octavo_partition_miss_curve(const struct octavo_partition *partition,
                                struct octavo_curve_point *points,
                                size_t most,
                                size_t *count,
                                double *references);

/**
 * Returns what to do: `OCTAVO_IO_*`.
 */
uint32_t octavo_io_op(const struct octavo_io *io);

/**
 * Returns the first byte of the range in the store, a multiple of the store's block. 0 for a sync.
 */
uint64_t octavo_io_offset(const struct octavo_io *io);

/**
 * Returns the length of the range in bytes. 0 for a sync.
 */
size_t octavo_io_len(const struct octavo_io *io);

/**
 * Returns the buffers of a read or a write, at most 1,024, which together have the length of the
 * range: for `preadv`, `pwritev` and the like. Do not change the buffers of a write. `*count`
 * becomes their number, 0 for other operations.
 */
const struct iovec *octavo_io_buffers(const struct octavo_io *io, size_t *count);

/**
 * Completes an I/O, and gives it back. `done` is the number of bytes that are done, from the first
 * on (for a sync, 0), or a negative number such as `-EIO`. If bytes are left, a further I/O for
 * them follows; a read that ends with 0 bytes has reached the end of the store, and the rest reads
 * as zeros.
 */
void octavo_io_complete(struct octavo_io *io, int64_t done);

/**
 * Opens a regular file or a block device that exists. `flags` are `OCTAVO_OPEN_*`, or 0. On
 * success, `*object` is the caller's to close.
 *
 * Errors: `OCTAVO_EOPEN`, `OCTAVO_EINVALID`, `OCTAVO_EFORK`.
 *
 * The caller promises:
 * `path` ends with a zero.
 */
int octavo_open(const struct octavo_partition *partition,
                const char *path,
                uint32_t flags,
                struct octavo_object **object);

/**
 * As `octavo_open`. If there is no such file, creates one of `len` zeros, which take no space. A
 * file that exists keeps its bytes and its length.
 *
 * The caller promises:
 * `path` ends with a zero.
 */
int octavo_open_or_create(const struct octavo_partition *partition,
                          const char *path,
                          uint32_t flags,
                          uint64_t len,
                          struct octavo_object **object);

/**
 * Opens a new store of `len` zeros in memory, for trials and tests. Its bytes are lost with it.
 * They are not part of the cache's limit.
 *
 * The caller promises:
 * `name` ends with a zero.
 */
int octavo_open_memory(const struct octavo_partition *partition,
                       const char *name,
                       uint64_t len,
                       struct octavo_object **object);

/**
 * Opens a store whose I/O the caller's functions carry: see `octavo_backend`. If this fails, it
 * has called `drop` of the back end, unless `backend` is invalid.
 *
 * Errors: `OCTAVO_EOPEN`, `OCTAVO_EINVALID`, `OCTAVO_EFORK`.
 *
 * The caller promises:
 * `name` ends with a zero, and `backend` keeps its promises.
 */
int octavo_open_backend(const struct octavo_partition *partition,
                        const char *name,
                        const struct octavo_backend *backend,
                        struct octavo_object **object);

/**
 * Makes all writes durable, drops the object's pages, and gives up the handle. If that fails, the
 * handle stays valid: `octavo_object_abandon` closes the object all the same.
 *
 * Errors: `OCTAVO_EIO`, `OCTAVO_EFAILED`, `OCTAVO_EFORK`.
 *
 * The caller promises:
 * `object` is null or a handle; after success, nobody uses it any more.
 */
int octavo_object_close(struct octavo_object *object);

/**
 * Closes the object without a sync, and gives up the handle. Dirty pages are lost; `*lost` (may be
 * null) becomes their bytes.
 */
void octavo_object_abandon(struct octavo_object *object, uint64_t *lost);

/**
 * Returns the length in bytes, or 0 for a null pointer.
 */
uint64_t octavo_object_len(const struct octavo_object *object);

/**
 * Changes the length of the object and of its store.
 *
 * Errors: `OCTAVO_EREADONLY`, `OCTAVO_EIO`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
 */
int octavo_object_set_len(const struct octavo_object *object, uint64_t len);

/**
 * Reads `len` bytes at `offset` into `buffer`.
 *
 * Errors: `OCTAVO_EPASTEND`, `OCTAVO_EIO`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
 *
 * The caller promises:
 * `buffer` has room for `len` bytes.
 */
int octavo_read(const struct octavo_object *object, uint64_t offset, void *buffer, size_t len);

/**
 * Reads as `octavo_read` does, if all bytes are in the cache. Never waits for a store.
 *
 * Errors: `OCTAVO_EAGAIN` if bytes are missing: `buffer` may have been changed. Those of
 * `octavo_read`.
 *
 * The caller promises:
 * `buffer` has room for `len` bytes.
 */
int octavo_try_read(const struct octavo_object *object, uint64_t offset, void *buffer, size_t len);

/**
 * Writes `len` bytes at `offset`. They are durable after a sync.
 *
 * Errors: `OCTAVO_EPASTEND`, `OCTAVO_EREADONLY`, `OCTAVO_EIO`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
 *
 * The caller promises:
 * `bytes` has `len` bytes.
 */
int octavo_write(const struct octavo_object *object,
                 uint64_t offset,
                 const void *bytes,
                 size_t len);

/**
 * Reads at `offset` into `count` buffers, one after the other.
 *
 * Errors: those of `octavo_read`.
 *
 * The caller promises:
 * The buffers have their lengths.
 */
int octavo_readv(const struct octavo_object *object,
                 uint64_t offset,
                 const struct iovec *vector,
                 size_t count);

/**
 * Writes at `offset` the bytes of `count` buffers, one after the other.
 *
 * Errors: those of `octavo_write`.
 *
 * The caller promises:
 * The buffers have their lengths.
 */
int octavo_writev(const struct octavo_object *object,
                  uint64_t offset,
                  const struct iovec *vector,
                  size_t count);

/**
 * Makes all writes that were acknowledged before the call durable.
 *
 * Errors: `OCTAVO_EIO`, `OCTAVO_EFAILED`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
 */
int octavo_sync(const struct octavo_object *object);

/**
 * As `octavo_sync`, for the pages of a range.
 */
int octavo_sync_range(const struct octavo_object *object, uint64_t offset, uint64_t len);

/**
 * Makes a range read as zeros; the store may free its space.
 *
 * Errors: those of `octavo_write`.
 */
int octavo_discard(const struct octavo_object *object, uint64_t offset, uint64_t len);

/**
 * Makes a range read as zeros; the store keeps its space.
 *
 * Errors: those of `octavo_write`.
 */
int octavo_zero(const struct octavo_object *object, uint64_t offset, uint64_t len);

/**
 * Announces how a range will be used. `advice` is one of `OCTAVO_ADVICE_*`; all but
 * `OCTAVO_ADVICE_WILLNEED` and `OCTAVO_ADVICE_DONTNEED` apply to the whole object.
 *
 * Errors: `OCTAVO_EINVALID`, `OCTAVO_EIO`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
 */
int octavo_advise(const struct octavo_object *object,
                  uint64_t offset,
                  uint64_t len,
                  uint32_t advice);

/**
 * Drops the pages of a range, because something else has changed the store. Dirty pages stay:
 * `*dirty` (may be null) becomes the bytes of these.
 *
 * Errors: `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
 */
int octavo_invalidate(const struct octavo_object *object,
                      uint64_t offset,
                      uint64_t len,
                      uint64_t *dirty);

/**
 * Pins the page of `offset`, and reads it first if it must. On success, `*pin` is the caller's to
 * release.
 *
 * Errors: `OCTAVO_EAGAIN` if the page's set has no room at the moment: read instead.
 * `OCTAVO_EPASTEND`, `OCTAVO_EIO`, `OCTAVO_ECLOSED`, `OCTAVO_EFORK`.
 */
int octavo_pin_page(const struct octavo_object *object,
                    uint64_t offset,
                    struct octavo_pin **pinned);

/**
 * Pins the page of `offset`, if it is in the cache. Never waits for a store.
 *
 * Errors: `OCTAVO_EAGAIN` if it is not; those of `octavo_pin_page`.
 */
int octavo_try_pin_page(const struct octavo_object *object,
                        uint64_t offset,
                        struct octavo_pin **pinned);

/**
 * Returns the first byte of the page: the object's byte at the multiple of the page size below the
 * offset. `*len` (may be null) becomes the number of bytes, which is less than a page at the
 * object's end. Valid until the pin is released.
 */
const void *octavo_pin_bytes(const struct octavo_pin *pin, size_t *len);

/**
 * Releases a pin.
 */
void octavo_unpin(struct octavo_pin *pin);

/**
 * Creates a queue. On success, `*queue` is the caller's to free.
 *
 * Errors: `OCTAVO_ENOMEMORY` if the buffer share has no room for its ring, `OCTAVO_EINVALID`,
 * `OCTAVO_EFORK`.
 */
int octavo_queue_new(const struct octavo_cache *cache, struct octavo_queue **queue);

/**
 * Waits for all requests in flight, and frees the queue. Their completions are lost.
 */
void octavo_queue_free(struct octavo_queue *queue);

/**
 * Submits requests to an object: all, or none if one is invalid. Never waits for a store, except
 * for advice. Each request completes, perhaps with an error.
 *
 * Errors: `OCTAVO_EINVALID`.
 *
 * The caller promises:
 * `requests` has `count` entries of the size of the first. The memory of each is valid, and nobody
 * else uses it, until the request has completed or the queue is freed.
 */
int octavo_queue_submit(struct octavo_queue *queue,
                        const struct octavo_object *object,
                        const struct octavo_request *requests,
                        size_t count);

/**
 * Waits until `min` requests have completed, or all that are in flight, and takes at most `most`
 * completions. With `min` 0 it never waits. `*count` becomes how many were taken.
 *
 * Errors: `OCTAVO_EINVALID`, and nothing was taken.
 *
 * The caller promises:
 * `completions` has room for `most` entries of the size that is set in the first.
 */
int octavo_queue_wait(struct octavo_queue *queue,
                      size_t min,
                      struct octavo_completion *completions,
                      size_t most,
                      size_t *count);

/**
 * Returns the number of requests whose completions were not taken.
 */
size_t octavo_queue_pending(const struct octavo_queue *queue);

/**
 * Sets `*fd` to a descriptor for `poll` or `epoll`, which belongs to the queue. It is readable
 * while the queue has completions to take or work to do: then call `octavo_queue_wait` with `min`
 * 0 until it takes none, and sleep again. It may also be readable for no reason.
 *
 * Errors: `OCTAVO_EINVALID` if the system has no descriptor left, `OCTAVO_EFORK`.
 */
int octavo_queue_fd(const struct octavo_queue *queue, int *fd);

/**
 * Fills in the statistics of a cache.
 *
 * The caller promises:
 * `stat` has as many bytes as its `size` says.
 */
int octavo_cache_get_stat(const struct octavo_cache *cache, struct octavo_cache_stat *stat);

/**
 * Fills in the statistics of a partition.
 *
 * The caller promises:
 * `stat` has as many bytes as its `size` says.
 */
int octavo_partition_get_stat(const struct octavo_partition *partition,
                              struct octavo_partition_stat *stat);

/**
 * Fills in the statistics of an object.
 *
 * The caller promises:
 * `stat` has as many bytes as its `size` says.
 */
int octavo_object_get_stat(const struct octavo_object *object, struct octavo_object_stat *stat);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OCTAVO_H */
