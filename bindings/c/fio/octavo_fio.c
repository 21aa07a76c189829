/*
 * An I/O engine for fio: jobs read and write their files through an Octavo cache.
 *
 *     make -C bindings/c fio FIO=/path/to/the/source/of/fio
 *     fio --ioengine=external:./liboctavo_fio.so --memory_max=1g --thread ...
 *
 * fio has no stable interface for engines: the source must be that of the fio that runs, and
 * configured (./configure) with the same libraries.
 *
 * Threads share one cache. Without --thread, each job is a process with a cache of its own.
 */

#include <errno.h>
#include <octavo.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fio.h"
#include "optgroup.h"

struct options {
    /* fio's own. */
    void *pad;
    unsigned long long memory_max;
    unsigned long long read_ahead;
    char *policy;
    unsigned int writeback;
};

static struct fio_option options[] = {
    { .name = "memory_max", .lname = "Octavo: memory of the cache", .type = FIO_OPT_STR_VAL,
      .off1 = offsetof(struct options, memory_max), .def = "64m", .category = FIO_OPT_C_ENGINE },
    { .name = "read_ahead", .lname = "Octavo: most bytes to read ahead", .type = FIO_OPT_STR_VAL,
      .off1 = offsetof(struct options, read_ahead), .def = "0", .category = FIO_OPT_C_ENGINE },
    { .name = "policy", .lname = "Octavo: eviction policy", .type = FIO_OPT_STR_STORE,
      .off1 = offsetof(struct options, policy), .category = FIO_OPT_C_ENGINE },
    { .name = "writeback", .lname = "Octavo: write later", .type = FIO_OPT_BOOL,
      .off1 = offsetof(struct options, writeback), .def = "0", .category = FIO_OPT_C_ENGINE },
    { .name = NULL },
};

/* An open file. Jobs that use it share it. */
struct file {
    struct file *next;
    char *name;
    octavo_object *object;
    int users;
};

/* The cache of the process, with the number of jobs that use it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static octavo_cache *cache;
static octavo_partition *partition;
static struct file *files;
static int jobs;

/* What a job has. */
struct job {
    octavo_queue *queue;
    octavo_completion *taken;
    struct io_u **ended;
};

static int failed(struct thread_data *td, const char *step) {
    log_err("octavo: %s: %s\n", step, octavo_error_message());
    td_verror(td, octavo_error_errno(), step);
    return 1;
}

static int make_cache(struct thread_data *td) {
    struct options *asked = td->eo;
    octavo_cache_config config = { .size = sizeof config, .memory_max_bytes = asked->memory_max };
    octavo_partition_config tenant = { .size = sizeof tenant, .policy = asked->policy,
                                       .cache_mode = asked->writeback ? OCTAVO_WRITEBACK : OCTAVO_WRITETHROUGH,
                                       .read_ahead_max_bytes = asked->read_ahead };
    if (octavo_cache_new(&config, &cache) || octavo_partition_new(cache, "fio", &tenant, &partition)) {
        octavo_cache_free(cache);
        cache = NULL;
        return failed(td, "cannot create the cache");
    }
    return 0;
}

static void cleanup(struct thread_data *td) {
    struct job *job = td->io_ops_data;
    if (job == NULL) {
        return;
    }
    octavo_queue_free(job->queue);
    free(job->taken);
    free(job->ended);
    free(job);
    td->io_ops_data = NULL;
    pthread_mutex_lock(&lock);
    if (--jobs == 0) {
        octavo_partition_stat stat = { .size = sizeof stat };
        if (octavo_partition_get_stat(partition, &stat) == OCTAVO_OK) {
            log_info("octavo: %llu hits, %llu misses\n", (unsigned long long)stat.hits,
                     (unsigned long long)stat.misses);
        }
        octavo_partition_free(partition);
        octavo_cache_free(cache);
        cache = NULL;
        partition = NULL;
    }
    pthread_mutex_unlock(&lock);
}

static int init(struct thread_data *td) {
    struct job *job = calloc(1, sizeof *job);
    job->taken = calloc(td->o.iodepth, sizeof *job->taken);
    job->ended = calloc(td->o.iodepth, sizeof(struct io_u *));
    pthread_mutex_lock(&lock);
    int code = cache == NULL ? make_cache(td) : 0;
    if (code == 0) {
        code = octavo_queue_new(cache, &job->queue) == OCTAVO_OK ? 0 : failed(td, "cannot create a queue");
        jobs++;
        td->io_ops_data = job;
    } else {
        free(job->taken);
        free(job->ended);
        free(job);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int open_file(struct thread_data *td, struct fio_file *file) {
    int code = 0;
    pthread_mutex_lock(&lock);
    struct file *open = files;
    while (open != NULL && strcmp(open->name, file->file_name) != 0) {
        open = open->next;
    }
    if (open == NULL) {
        octavo_object *object;
        uint32_t flags = read_only ? OCTAVO_OPEN_READ_ONLY : 0;
        if (octavo_open_or_create(partition, file->file_name, flags, file->real_file_size, &object)) {
            code = failed(td, "cannot open a file");
        } else {
            open = calloc(1, sizeof *open);
            *open = (struct file){ .next = files, .name = strdup(file->file_name), .object = object };
            files = open;
        }
    }
    if (open != NULL) {
        open->users++;
        FILE_SET_ENG_DATA(file, open);
        file->fd = -1;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int close_file(struct thread_data *td, struct fio_file *file) {
    int code = 0;
    pthread_mutex_lock(&lock);
    struct file *open = FILE_ENG_DATA(file);
    FILE_SET_ENG_DATA(file, NULL);
    if (open != NULL && --open->users == 0) {
        struct file **link = &files;
        while (*link != open) {
            link = &(*link)->next;
        }
        *link = open->next;
        if (octavo_object_close(open->object) != OCTAVO_OK) {
            code = failed(td, "cannot close a file");
            octavo_object_abandon(open->object, NULL);
        }
        free(open->name);
        free(open);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* Returns whether there is an operation for what fio asks. */
static int request_of(struct io_u *unit, octavo_request *request) {
    *request = (octavo_request){ .size = sizeof *request, .user_data = (uintptr_t)unit, .offset = unit->offset,
                                 .len = unit->xfer_buflen, .memory = unit->xfer_buf };
    switch (unit->ddir) {
    case DDIR_READ:
        request->op = OCTAVO_OP_READ;
        return 1;
    case DDIR_WRITE:
        request->op = OCTAVO_OP_WRITE;
        return 1;
    case DDIR_TRIM:
        request->op = OCTAVO_OP_DISCARD;
        return 1;
    default:
        request->op = OCTAVO_OP_SYNC;
        return ddir_sync(unit->ddir);
    }
}

/* At depth 1, a call is cheaper than a request. */
static int call(octavo_object *object, const octavo_request *request) {
    switch (request->op) {
    case OCTAVO_OP_READ:
        return octavo_read(object, request->offset, request->memory, request->len);
    case OCTAVO_OP_WRITE:
        return octavo_write(object, request->offset, request->memory, request->len);
    case OCTAVO_OP_DISCARD:
        return octavo_discard(object, request->offset, request->len);
    default:
        return octavo_sync(object);
    }
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *unit) {
    struct job *job = td->io_ops_data;
    struct file *open = FILE_ENG_DATA(unit->file);
    octavo_request request;
    fio_ro_check(td, unit);
    if (!request_of(unit, &request)) {
        unit->error = EINVAL;
        return FIO_Q_COMPLETED;
    }
    int is_alone = td->o.iodepth == 1;
    int code = is_alone ? call(open->object, &request)
                        : octavo_queue_submit(job->queue, open->object, &request, 1);
    if (code != OCTAVO_OK) {
        unit->error = octavo_error_errno();
        return FIO_Q_COMPLETED;
    }
    return is_alone ? FIO_Q_COMPLETED : FIO_Q_QUEUED;
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *time) {
    struct job *job = td->io_ops_data;
    size_t count = 0;
    job->taken[0].size = sizeof job->taken[0];
    if (octavo_queue_wait(job->queue, min, job->taken, max, &count) != OCTAVO_OK) {
        return -octavo_error_errno();
    }
    for (size_t i = 0; i < count; i++) {
        job->ended[i] = (struct io_u *)(uintptr_t)job->taken[i].user_data;
        job->ended[i]->error = job->taken[i].error;
    }
    (void)time;
    return (int)count;
}

static struct io_u *event(struct thread_data *td, int number) {
    struct job *job = td->io_ops_data;
    return job->ended[number];
}

struct ioengine_ops ioengine = {
    .name = "octavo",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_NODISKUTIL,
    .init = init,
    .cleanup = cleanup,
    .open_file = open_file,
    .close_file = close_file,
    .queue = queue,
    .getevents = getevents,
    .event = event,
    .options = options,
    .option_struct_size = sizeof(struct options),
};
