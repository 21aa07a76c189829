/*
 * A store of one's own: a thread keeps the bytes, and answers later.
 *
 *     cc -pthread backend.c $(pkg-config --cflags --libs octavo) -o backend && ./backend
 */

#include <errno.h>
#include <octavo.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEN = 1 << 20, WAITING_MAX = 4096 };

struct store {
    char *bytes;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    octavo_io *waiting[WAITING_MAX];
    int count;
    int ends;
};

static void check(int code) {
    if (code != OCTAVO_OK) {
        fprintf(stderr, "%s: %s\n", octavo_error_name(code), octavo_error_message());
        exit(1);
    }
}

static void execute(struct store *store, octavo_io *io) {
    char *at = store->bytes + octavo_io_offset(io);
    uint32_t op = octavo_io_op(io);
    size_t count;
    const struct iovec *buffers = octavo_io_buffers(io, &count);
    for (size_t i = 0; i < count; i++) {
        if (op == OCTAVO_IO_READ) {
            memcpy(buffers[i].iov_base, at, buffers[i].iov_len);
        } else {
            memcpy(at, buffers[i].iov_base, buffers[i].iov_len);
        }
        at += buffers[i].iov_len;
    }
    octavo_io_complete(io, (int64_t)octavo_io_len(io));
}

static void *serve(void *user) {
    struct store *store = user;
    pthread_mutex_lock(&store->lock);
    while (store->count > 0 || !store->ends) {
        if (store->count == 0) {
            pthread_cond_wait(&store->changed, &store->lock);
            continue;
        }
        octavo_io *io = store->waiting[--store->count];
        pthread_mutex_unlock(&store->lock);
        execute(store, io);
        pthread_mutex_lock(&store->lock);
    }
    pthread_mutex_unlock(&store->lock);
    return NULL;
}

static int len_of(void *user, uint64_t *len) {
    (void)user;
    *len = LEN;
    return 0;
}

/* Does not wait: the thread completes the I/O. */
static void submit(void *user, octavo_io *io) {
    struct store *store = user;
    pthread_mutex_lock(&store->lock);
    int is_full = store->count == WAITING_MAX;
    if (!is_full) {
        store->waiting[store->count++] = io;
        pthread_cond_signal(&store->changed);
    }
    pthread_mutex_unlock(&store->lock);
    if (is_full) {
        octavo_io_complete(io, -EBUSY);
    }
}

static void drop(void *user) {
    struct store *store = user;
    pthread_mutex_lock(&store->lock);
    store->ends = 1;
    pthread_cond_signal(&store->changed);
    pthread_mutex_unlock(&store->lock);
}

int main(void) {
    struct store store = { .bytes = malloc(LEN), .lock = PTHREAD_MUTEX_INITIALIZER,
                           .changed = PTHREAD_COND_INITIALIZER };
    memset(store.bytes, 'x', LEN);
    pthread_create(&store.thread, NULL, serve, &store);

    octavo_cache *cache;
    octavo_partition *partition;
    octavo_partition_config config = { .size = sizeof config, .cache_mode = OCTAVO_WRITEBACK };
    check(octavo_cache_new(NULL, &cache));
    check(octavo_partition_new(cache, "app", &config, &partition));

    octavo_backend backend = { .size = sizeof backend, .user = &store, .len = len_of,
                               .submit = submit, .drop = drop };
    octavo_object *object;
    check(octavo_open_backend(partition, "store", &backend, &object));

    check(octavo_write(object, 10000, "octavo", 6));
    printf("before the sync: %.6s\n", store.bytes + 10000);
    check(octavo_sync(object));
    printf("after it: %.6s\n", store.bytes + 10000);

    check(octavo_object_close(object));
    octavo_partition_free(partition);
    octavo_cache_free(cache);
    pthread_join(store.thread, NULL);
    free(store.bytes);
    return 0;
}
