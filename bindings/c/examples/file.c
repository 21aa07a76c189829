/*
 * Reads and writes a file through a cache of 64 MiB, and shows what that cost.
 *
 *     cc file.c $(pkg-config --cflags --libs octavo) -o file && ./file /tmp/octavo-example
 */

#include <inttypes.h>
#include <octavo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    octavo_cache_config config = { .size = sizeof config, .memory_max_bytes = 64 << 20 };
    octavo_cache *cache;
    check(octavo_cache_new(&config, &cache));

    /* A tenant: each has a size, a policy and statistics of its own. */
    octavo_partition *partition;
    check(octavo_partition_new(cache, "app", NULL, &partition));

    octavo_object *object;
    check(octavo_open_or_create(partition, arguments[1], 0, 1 << 20, &object));

    char text[] = "a sheet folded to sixteen pages";
    check(octavo_write(object, 5000, text, sizeof text));
    check(octavo_sync(object));

    char read[sizeof text];
    for (int i = 0; i < 1000; i++) {
        check(octavo_read(object, 5000, read, sizeof read));
    }
    puts(read);

    /* A page without a copy. It stays as it is until it is released, whatever is written. */
    octavo_pin *pin;
    size_t len;
    check(octavo_pin_page(object, 5000, &pin));
    const char *page = octavo_pin_bytes(pin, &len);
    check(octavo_write(object, 5000, "A", 1));
    printf("%zu bytes, still with '%c'\n", len, page[5000 - 4096]);
    octavo_unpin(pin);

    octavo_partition_stat stat = { .size = sizeof stat };
    check(octavo_partition_get_stat(partition, &stat));
    printf("%" PRIu64 " hits, %" PRIu64 " misses\n", stat.hits, stat.misses);

    check(octavo_object_close(object));
    octavo_partition_free(partition);
    octavo_cache_free(cache);
    return 0;
}
