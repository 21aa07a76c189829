/* Reads of 128 bytes that hit, as in hit.rs. Prints nanoseconds for each read. */

#include <octavo.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LEN = 8 << 20, PIECE = 128, READS = 5000000 };

static void check(int code) {
    if (code != OCTAVO_OK) {
        fprintf(stderr, "%s: %s\n", octavo_error_name(code), octavo_error_message());
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(void) {
    octavo_cache *cache;
    octavo_partition *partition;
    octavo_object *object;
    check(octavo_cache_new(NULL, &cache));
    check(octavo_partition_new(cache, "hits", NULL, &partition));
    check(octavo_open_memory(partition, "memory", LEN, &object));
    check(octavo_advise(object, 0, LEN, OCTAVO_ADVICE_WILLNEED));
    unsigned char buffer[PIECE];
    uint64_t state = 88172645463325252, sum = 0;
    double start = 0;
    for (int i = -READS / 10; i < READS; i++) {
        if (i == 0) {
            start = now();
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        check(octavo_read(object, state % (LEN / PIECE) * PIECE, buffer, PIECE));
        sum += buffer[0];
    }
    printf("%.2f\n", (now() - start) / READS);
    octavo_object_abandon(object, NULL);
    octavo_partition_free(partition);
    octavo_cache_free(cache);
    return sum == 0 ? 0 : 1;
}
