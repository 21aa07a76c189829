/*
 * What the header promises, from C: results, errors, sizes of structs, forks.
 *
 * usage: api DIRECTORY
 */

#include <errno.h>
#include <octavo.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define IS(condition)                                                                       \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "%s:%d: %s\nlast error: %s (%d)\n", __FILE__, __LINE__, #condition, \
                    octavo_error_message(), octavo_error_errno());                          \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

#define FAILS(call, with, words)                             \
    do {                                                     \
        errno = 0;                                           \
        IS((call) == (with));                                \
        IS(strstr(octavo_error_message(), words) != NULL);   \
        IS(errno != 0 && errno == octavo_error_errno());     \
    } while (0)

enum { PAGE = 4096, LEN = 64 * PAGE };

static octavo_cache *cache;
static octavo_partition *partition;
static octavo_object *object;

static void null_arguments(void) {
    char byte;
    octavo_object *other = (octavo_object *)8;
    FAILS(octavo_cache_new(NULL, NULL), OCTAVO_EINVALID, "cache is a null pointer");
    FAILS(octavo_read(NULL, 0, &byte, 1), OCTAVO_EINVALID, "object is a null pointer");
    FAILS(octavo_open(partition, NULL, 0, &other), OCTAVO_EINVALID, "path is a null pointer");
    IS(other == NULL);
    FAILS(octavo_queue_submit(NULL, object, NULL, 1), OCTAVO_EINVALID, "queue is a null pointer");
    FAILS(octavo_cache_get_stat(cache, NULL), OCTAVO_EINVALID, "null pointer");
    octavo_cache_free(NULL);
    octavo_partition_free(NULL);
    octavo_queue_free(NULL);
    octavo_unpin(NULL);
    IS(octavo_object_close(NULL) == OCTAVO_OK);
    octavo_object_abandon(NULL, NULL);
    octavo_io_complete(NULL, 0);
    IS(octavo_object_len(NULL) == 0 && octavo_pin_bytes(NULL, NULL) == NULL);
}

static void sizes_of_structs(void) {
    octavo_cache *other;
    octavo_cache_config config = { .memory_max_bytes = 64 << 20 };
    FAILS(octavo_cache_new(&config, &other), OCTAVO_EINVALID, "set it to sizeof(octavo_cache_config)");
    /* A program of a later version, which uses what this library does not know. */
    struct { octavo_cache_config config; uint64_t later; } newer = {
        .config = { .size = sizeof newer, .io_engine = getenv("IO_ENGINE") }
    };
    IS(octavo_cache_new(&newer.config, &other) == OCTAVO_OK);
    octavo_cache_free(other);
    newer.later = 1;
    FAILS(octavo_cache_new(&newer.config, &other), OCTAVO_EINVALID, "older than the header");
    IS(other == NULL);
    struct { octavo_cache_stat stat; uint64_t later; } stat = { .stat = { .size = sizeof stat }, .later = 7 };
    IS(octavo_cache_get_stat(cache, &stat.stat) == OCTAVO_OK);
    IS(stat.stat.size == sizeof stat && stat.stat.memory_max_bytes == 16 << 20 && stat.later == 0);
}

static void configurations(void) {
    octavo_cache *other;
    octavo_partition *tenant;
    octavo_cache_config config = { .size = sizeof config, .numa = "sideways" };
    FAILS(octavo_cache_new(&config, &other), OCTAVO_EINVALID, "numa is \"sideways\"");
    octavo_partition_config tenants = { .size = sizeof tenants, .policy = "best" };
    FAILS(octavo_partition_new(cache, "tenant", &tenants, &tenant), OCTAVO_EINVALID, "best");
    FAILS(octavo_partition_new(cache, "app", NULL, &tenant), OCTAVO_EINVALID, "app");
    FAILS(octavo_partition_new(cache, "\xff", NULL, &tenant), OCTAVO_EINVALID, "UTF-8");
    tenants.policy = "lru";
    tenants.cache_mode = OCTAVO_WRITEBACK;
    IS(octavo_partition_new(cache, "tenant", &tenants, &tenant) == OCTAVO_OK);
    IS(octavo_partition_set_max(tenant, 4 << 20) == OCTAVO_OK);
    octavo_partition_free(tenant);
    IS(octavo_partition_remove(cache, "tenant") == OCTAVO_OK);
    FAILS(octavo_partition_remove(cache, "tenant"), OCTAVO_EINVALID, "tenant");
}

static void reads_and_writes(void) {
    char bytes[3 * PAGE], read[3 * PAGE];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (char)(i * 7);
    }
    IS(octavo_object_len(object) == LEN);
    IS(octavo_write(object, 1000, bytes, sizeof bytes) == OCTAVO_OK);
    IS(octavo_read(object, 1000, read, sizeof read) == OCTAVO_OK && memcmp(bytes, read, sizeof read) == 0);
    struct iovec pieces[] = { { read, 100 }, { NULL, 0 }, { read + 100, sizeof read - 100 } };
    memset(read, 0, sizeof read);
    IS(octavo_readv(object, 1000, pieces, 3) == OCTAVO_OK && memcmp(bytes, read, sizeof read) == 0);
    IS(octavo_writev(object, 20 * PAGE, pieces, 3) == OCTAVO_OK);
    IS(octavo_sync_range(object, 20 * PAGE, PAGE) == OCTAVO_OK && octavo_sync(object) == OCTAVO_OK);
    FAILS(octavo_read(object, LEN - 1, read, 2), OCTAVO_EPASTEND, "reach past its end");
    IS(octavo_zero(object, 0, PAGE) == OCTAVO_OK && octavo_discard(object, PAGE, PAGE) == OCTAVO_OK);
    IS(octavo_read(object, 1000, read, 4) == OCTAVO_OK && memcmp(read, "\0\0\0\0", 4) == 0);
    IS(octavo_advise(object, 0, LEN, OCTAVO_ADVICE_DONTNEED) == OCTAVO_OK);
    FAILS(octavo_advise(object, 0, LEN, 99), OCTAVO_EINVALID, "99");
    IS(octavo_try_read(object, 40 * PAGE, read, 10) == OCTAVO_EAGAIN);
    IS(octavo_read(object, 40 * PAGE, read, 10) == OCTAVO_OK);
    IS(octavo_try_read(object, 40 * PAGE, read, 10) == OCTAVO_OK);
    uint64_t dirty = 1;
    IS(octavo_invalidate(object, 40 * PAGE, PAGE, &dirty) == OCTAVO_OK && dirty == 0);
    IS(octavo_try_read(object, 40 * PAGE, read, 10) == OCTAVO_EAGAIN);
    IS(octavo_object_set_len(object, LEN + 10) == OCTAVO_OK && octavo_object_len(object) == LEN + 10);
    IS(octavo_object_set_len(object, LEN) == OCTAVO_OK);
    octavo_object_stat stat = { .size = sizeof stat };
    IS(octavo_object_get_stat(object, &stat) == OCTAVO_OK && stat.len_bytes == LEN && stat.failed == 0);
}

static void stores(const char *path) {
    octavo_object *other;
    FAILS(octavo_open(partition, "/no/such/file", 0, &other), OCTAVO_EOPEN, "/no/such/file");
    IS(octavo_error_errno() == ENOENT);
    FAILS(octavo_open(partition, path, 0, &other), OCTAVO_EOPEN, path);
    IS(octavo_error_errno() == EBUSY);
    FAILS(octavo_open(partition, path, 1u << 20, &other), OCTAVO_EINVALID, "flags");
    octavo_backend backend = { .size = sizeof backend };
    FAILS(octavo_open_backend(partition, "own", &backend, &other), OCTAVO_EINVALID, "no len");
    IS(octavo_open_memory(partition, "memory", LEN, &other) == OCTAVO_OK);
    IS(octavo_write(other, 0, "a", 1) == OCTAVO_OK);
    uint64_t lost = 1;
    octavo_object_abandon(other, &lost);
    IS(lost == 0);
}

static void pins(void) {
    octavo_pin *pin, *again;
    size_t len;
    IS(octavo_write(object, 50 * PAGE, "before", 6) == OCTAVO_OK);
    IS(octavo_pin_page(object, 50 * PAGE + 3, &pin) == OCTAVO_OK);
    IS(octavo_try_pin_page(object, 50 * PAGE, &again) == OCTAVO_OK);
    IS(octavo_write(object, 50 * PAGE, "after!", 6) == OCTAVO_OK);
    IS(memcmp(octavo_pin_bytes(pin, &len), "before", 6) == 0 && len == PAGE);
    octavo_unpin(pin);
    octavo_unpin(again);
    IS(octavo_try_pin_page(object, 60 * PAGE, &pin) == OCTAVO_EAGAIN && pin == NULL);
    FAILS(octavo_pin_page(object, LEN, &pin), OCTAVO_EPASTEND, "reach past its end");
}

static void queues(void) {
    octavo_queue *queue;
    char bytes[2][PAGE];
    IS(octavo_queue_new(cache, &queue) == OCTAVO_OK);
    octavo_request requests[3] = {
        { .size = sizeof requests[0], .op = OCTAVO_OP_READ, .user_data = 1, .len = PAGE, .memory = bytes[0] },
        { .size = sizeof requests[0], .op = OCTAVO_OP_READ, .user_data = 2, .offset = LEN, .len = 1,
          .memory = bytes[1] },
        { .size = sizeof requests[0], .op = OCTAVO_OP_SYNC, .user_data = 3 },
    };
    octavo_request wrong[2] = { requests[0], { .size = sizeof wrong[0], .op = 77 } };
    FAILS(octavo_queue_submit(queue, object, wrong, 2), OCTAVO_EINVALID, "77 is no operation");
    IS(octavo_queue_pending(queue) == 0);
    IS(octavo_queue_submit(queue, object, requests, 3) == OCTAVO_OK);
    IS(octavo_queue_pending(queue) == 3);
    int codes[4] = { 1, 1, 1, 1 };
    size_t count = 0, most = 2;
    for (size_t done = 0; done < 3; done += count) {
        octavo_completion taken[2] = { { .size = sizeof taken[0] } };
        IS(octavo_queue_wait(queue, 3, taken, most, &count) == OCTAVO_OK && count > 0 && count <= most);
        for (size_t i = 0; i < count; i++) {
            IS(taken[i].size == sizeof taken[0]);
            codes[taken[i].user_data] = taken[i].code;
        }
    }
    IS(codes[1] == OCTAVO_OK && codes[2] == OCTAVO_EPASTEND && codes[3] == OCTAVO_OK);
    IS(strstr(octavo_error_message(), "reach past its end") != NULL);
    octavo_completion unset[1] = { { .size = 0 } };
    FAILS(octavo_queue_wait(queue, 0, unset, 1, &count), OCTAVO_EINVALID, "octavo_completion");
    int fd = -1;
    IS(octavo_queue_fd(queue, &fd) == OCTAVO_OK && fd >= 0);
    octavo_queue_free(queue);
}

static void *in_another_thread(void *unused) {
    (void)unused;
    IS(octavo_error_errno() == 0 && strcmp(octavo_error_message(), "") == 0);
    char byte;
    IS(octavo_read(object, LEN, &byte, 1) == OCTAVO_EPASTEND);
    return NULL;
}

static void errors_belong_to_threads(void) {
    pthread_t thread;
    IS(octavo_open(partition, "/no/such/file", 0, &(octavo_object *){ 0 }) == OCTAVO_EOPEN);
    IS(pthread_create(&thread, NULL, in_another_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    IS(octavo_error_errno() == ENOENT && strstr(octavo_error_message(), "/no/such/file") != NULL);
}

static void forks(void) {
    octavo_pin *pin;
    IS(octavo_pin_page(object, 0, &pin) == OCTAVO_OK);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        octavo_queue *queue;
        /* Not a hang: a missing page would need threads and rings that only the parent has. */
        alarm(60);
        FAILS(octavo_read(object, 45 * PAGE, &byte, 1), OCTAVO_EFORK, "child of fork");
        FAILS(octavo_write(object, 0, "x", 1), OCTAVO_EFORK, "child of fork");
        FAILS(octavo_sync(object), OCTAVO_EFORK, "child of fork");
        FAILS(octavo_queue_new(cache, &queue), OCTAVO_EFORK, "child of fork");
        IS(octavo_pin_bytes(pin, NULL) != NULL);
        octavo_unpin(pin);
        octavo_object_abandon(object, NULL);
        octavo_partition_free(partition);
        octavo_cache_free(cache);
        octavo_cache *own;
        octavo_partition *app;
        octavo_object *memory;
        IS(octavo_cache_new(NULL, &own) == OCTAVO_OK);
        IS(octavo_partition_new(own, "app", NULL, &app) == OCTAVO_OK);
        IS(octavo_open_memory(app, "memory", LEN, &memory) == OCTAVO_OK);
        IS(octavo_read(memory, 0, &byte, 1) == OCTAVO_OK && byte == 0);
        IS(octavo_object_close(memory) == OCTAVO_OK);
        octavo_partition_free(app);
        octavo_cache_free(own);
        /* Not exit: what the parent's threads own is no leak. */
        _exit(0);
    }
    int status;
    IS(child > 0 && waitpid(child, &status, 0) == child);
    IS(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    octavo_unpin(pin);
    IS(octavo_write(object, 0, "x", 1) == OCTAVO_OK && octavo_sync(object) == OCTAVO_OK);
}

static int lines;

static void count_line(void *user, uint32_t level, const char *line) {
    IS(user == &lines && level >= OCTAVO_LOG_ERROR && level <= OCTAVO_LOG_DEBUG && line[0] != '\0');
    __atomic_add_fetch(&lines, 1, __ATOMIC_RELAXED);
}

static void logs(void) {
    IS(octavo_set_log(OCTAVO_LOG_DEBUG, count_line, &lines) == OCTAVO_OK);
    FAILS(octavo_set_log(17, NULL, NULL), OCTAVO_EINVALID, "17");
    octavo_object *other;
    /* A failing sync is logged. The store refuses it. */
    IS(octavo_set_log(OCTAVO_LOG_OFF, NULL, NULL) == OCTAVO_OK);
    IS(octavo_open_memory(partition, "quiet", LEN, &other) == OCTAVO_OK);
    octavo_object_abandon(other, NULL);
}

static void curves(void) {
    size_t count = 99;
    double references = -1;
    IS(octavo_partition_miss_curve(partition, NULL, 0, &count, &references) == OCTAVO_OK);
    IS(references >= 0);
    FAILS(octavo_partition_miss_curve(partition, NULL, 4, &count, NULL), OCTAVO_EINVALID, "points");
    octavo_curve_point points[64];
    IS(octavo_partition_miss_curve(partition, points, 64, &count, NULL) == OCTAVO_OK);
    for (size_t i = 1; i < count && i < 64; i++) {
        IS(points[i - 1].bytes < points[i].bytes);
    }
}

int main(int count, char **arguments) {
    IS(count == 2);
    char path[4096];
    snprintf(path, sizeof path, "%s/api.img", arguments[1]);
    remove(path);
    octavo_cache_config config = { .size = sizeof config, .memory_max_bytes = 16 << 20,
                                   .io_engine = getenv("IO_ENGINE") };
    IS(octavo_cache_new(&config, &cache) == OCTAVO_OK);
    IS(octavo_partition_new(cache, "app", NULL, &partition) == OCTAVO_OK);
    IS(octavo_open_or_create(partition, path, 0, LEN, &object) == OCTAVO_OK);
    null_arguments();
    sizes_of_structs();
    configurations();
    reads_and_writes();
    stores(path);
    pins();
    queues();
    errors_belong_to_threads();
    logs();
    curves();
    if (getenv("NO_FORK") == NULL) {
        forks();
    }
    IS(octavo_partition_sync(partition) == OCTAVO_OK && octavo_cache_clean(cache) == OCTAVO_OK);
    IS(octavo_partition_evict(partition) == OCTAVO_OK);
    IS(octavo_object_close(object) == OCTAVO_OK);
    octavo_partition_free(partition);
    octavo_cache_free(cache);
    puts(octavo_version());
    return 0;
}
