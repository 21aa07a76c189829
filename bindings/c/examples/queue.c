/*
 * A thousand reads in flight from one thread, which sleeps in poll(2).
 *
 *     cc queue.c $(pkg-config --cflags --libs octavo) -o queue && ./queue /usr/bin/env
 */

#include <errno.h>
#include <octavo.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE = 4096, READS_MAX = 1000, TAKEN_MAX = 64 };

static void check(int code) {
    if (code != OCTAVO_OK) {
        fprintf(stderr, "%s: %s\n", octavo_error_name(code), octavo_error_message());
        exit(1);
    }
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: %s FILE\n", arguments[0]);
        return 2;
    }
    octavo_cache *cache;
    octavo_partition *partition;
    octavo_object *object;
    octavo_queue *queue;
    check(octavo_cache_new(NULL, &cache));
    check(octavo_partition_new(cache, "app", NULL, &partition));
    check(octavo_open(partition, arguments[1], OCTAVO_OPEN_READ_ONLY, &object));
    check(octavo_queue_new(cache, &queue));

    uint64_t len = octavo_object_len(object);
    size_t reads = len / PIECE < READS_MAX ? len / PIECE : READS_MAX;
    char *memory = malloc(reads * PIECE + 1);
    octavo_request *requests = calloc(reads + 1, sizeof *requests);
    for (size_t i = 0; i < reads; i++) {
        requests[i] = (octavo_request){ .size = sizeof *requests, .op = OCTAVO_OP_READ, .user_data = i,
                                        .offset = i * PIECE, .len = PIECE, .memory = memory + i * PIECE };
    }
    check(octavo_queue_submit(queue, object, requests, reads));

    struct pollfd fd = { .events = POLLIN };
    check(octavo_queue_fd(queue, &fd.fd));
    size_t done = 0;
    while (done < reads) {
        octavo_completion taken[TAKEN_MAX] = { { .size = sizeof taken[0] } };
        size_t now;
        check(octavo_queue_wait(queue, 0, taken, TAKEN_MAX, &now));
        for (size_t i = 0; i < now; i++) {
            check(taken[i].code);
        }
        done += now;
        /* Other descriptors, such as sockets, go here, too. */
        if (now == 0 && poll(&fd, 1, -1) < 0 && errno != EINTR) {
            perror("poll");
            return 1;
        }
    }
    printf("read %zu pieces\n", done);

    octavo_queue_free(queue);
    check(octavo_object_close(object));
    octavo_partition_free(partition);
    octavo_cache_free(cache);
    free(requests);
    free(memory);
    return 0;
}
