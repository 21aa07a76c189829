/* Calls to a disk that hang while a file is there: "writes", "syncs" or "opens" in the folder HANGING, or "writes-NAME" and the like for a disk of
   that name alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void hang_at(const char *what, const char *disk) {
    char all[PATH_MAX], one[PATH_MAX];
    const char *folder = getenv("HANGING");
    if (!folder)
        return;
    const char *slash = strrchr(disk, '/');
    snprintf(all, sizeof all, "%s/%s", folder, what);
    snprintf(one, sizeof one, "%s/%s-%s", folder, what, slash ? slash + 1 : disk);
    /* A successor that hangs in an open uses processor time, so that its predecessor waits for it until a test stops it. */
    long pause_ns = strcmp(what, "opens") == 0 ? 20000 : 10000000;
    while (access(all, F_OK) == 0 || access(one, F_OK) == 0) {
        struct timespec pause = {0, pause_ns};
        nanosleep(&pause, NULL);
    }
}

static void hang(const char *what, int fd) {
    char link[64], disk[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, disk, sizeof disk - 1);
    disk[len < 0 ? 0 : len] = 0;
    hang_at(what, disk);
}

/* Only the disks, by their name: other files are opened at the start, too. */
int open64(const char *path, int flags, ...) {
    const char *slash = strrchr(path, '/');
    mode_t mode = 0;
    if (flags & (O_CREAT | __O_TMPFILE)) {
        va_list more;
        va_start(more, flags);
        mode = va_arg(more, mode_t);
        va_end(more);
    }
    if (slash && strcmp(slash, "/disk") == 0)
        hang_at("opens", path);
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) {
    hang("writes", fd);
    return syscall(SYS_pwrite64, fd, bytes, len, at);
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off_t at) {
    return pwrite(fd, bytes, len, at);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) {
    hang("writes", fd);
    return syscall(SYS_pwritev, fd, pieces, count, at, 0);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off_t at) {
    return pwritev(fd, pieces, count, at);
}

/* A signal to the program while it reads its environment. */
char *getenv(const char *name) {
    const char *number = secure_getenv("SIGNAL_AT_START");
    if (number && strcmp(name, "NOTIFY_SOCKET") == 0)
        kill(getpid(), atoi(number));
    return secure_getenv(name);
}

int fdatasync(int fd) {
    hang("syncs", fd);
    return syscall(SYS_fdatasync, fd);
}
