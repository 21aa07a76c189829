/* Calls to a disk that hang while a file is there: "writes" or "syncs" in the folder HANGING. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void hang(const char *what) {
    char path[PATH_MAX];
    const char *folder = getenv("HANGING");
    if (!folder)
        return;
    snprintf(path, sizeof path, "%s/%s", folder, what);
    while (access(path, F_OK) == 0) {
        struct timespec pause = {0, 10000000};
        nanosleep(&pause, NULL);
    }
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) {
    hang("writes");
    return syscall(SYS_pwrite64, fd, bytes, len, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off_t at) {
    return pwrite(fd, bytes, len, at);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) {
    hang("writes");
    return syscall(SYS_pwritev, fd, pieces, count, at, 0);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off_t at) {
    return pwritev(fd, pieces, count, at);
}

int fdatasync(int fd) {
    hang("syncs");
    return syscall(SYS_fdatasync, fd);
}
