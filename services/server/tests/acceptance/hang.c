/* Simulates a file system that hangs: loaded into a process by LD_PRELOAD, it blocks calls on files and folders below
 * HANG_FOLDER while the file HANG_WHILE exists. Like a disk that does not answer, it returns no error, and no signal
 * interrupts it. Both are absolute paths. Files of other folders, sockets and pipes are not affected.
 *
 * The host name HANG_NAME has the address 127.0.0.1. While the file exists, looking it up blocks too. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static const char *folder, *flag, *host;
static size_t length;

__attribute__((constructor)) static void begin(void) {
    folder = getenv("HANG_FOLDER");
    flag = getenv("HANG_WHILE");
    host = getenv("HANG_NAME");
    length = folder ? strlen(folder) : 0;
}

static int hangs(void) { return flag && access(flag, F_OK) == 0; }

static int is_below(const char *path) {
    return length && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static void wait_while_it_hangs(void) {
    struct timespec moment = {0, 5 * 1000 * 1000};
    while (hangs()) nanosleep(&moment, 0);
}

static void at_path(const char *path) {
    if (hangs() && is_below(path)) wait_while_it_hangs();
}

static void at_file(int file) {
    char link[32], path[PATH_MAX];
    if (!hangs()) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t found = readlink(link, path, sizeof path - 1);
    if (found <= 0) return;
    path[found] = 0;
    if (is_below(path)) wait_while_it_hangs();
}

static void at(int file, const char *path) {
    if (path[0] == 0) at_file(file);
    else at_path(path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Defines `type name parameters`, which waits and then calls the original. */
#define WRAP(type, name, parameters, arguments, wait) \
    type name parameters {                            \
        static __typeof__(&name) next;                \
        if (!next) next = NEXT(name);                 \
        wait;                                         \
        return next arguments;                        \
    }

WRAP(ssize_t, read, (int file, void *to, size_t count), (file, to, count), at_file(file))
WRAP(ssize_t, readv, (int file, const struct iovec *to, int count), (file, to, count), at_file(file))
WRAP(ssize_t, pread, (int file, void *to, size_t count, off_t from), (file, to, count, from), at_file(file))
WRAP(ssize_t, pread64, (int file, void *to, size_t count, off64_t from), (file, to, count, from), at_file(file))
WRAP(ssize_t, write, (int file, const void *from, size_t count), (file, from, count), at_file(file))
WRAP(ssize_t, writev, (int file, const struct iovec *from, int count), (file, from, count), at_file(file))
WRAP(int, fsync, (int file), (file), at_file(file))
WRAP(int, fstat64, (int file, struct stat64 *to), (file, to), at_file(file))
WRAP(int, stat64, (const char *path, struct stat64 *to), (path, to), at_path(path))
WRAP(int, lstat64, (const char *path, struct stat64 *to), (path, to), at_path(path))
WRAP(int, statx, (int file, const char *path, int flags, unsigned mask, struct statx *to), (file, path, flags, mask, to), at(file, path))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), at_path(path))
WRAP(int, rename, (const char *from, const char *to), (from, to), at_path(to))
WRAP(int, unlink, (const char *path), (path), at_path(path))
WRAP(DIR *, opendir, (const char *path), (path), at_path(path))

#define WRAP_OPEN(name)                               \
    int name(const char *path, int flags, ...) {      \
        static __typeof__(&name) next;                \
        va_list rest;                                 \
        va_start(rest, flags);                        \
        mode_t mode = va_arg(rest, mode_t);           \
        va_end(rest);                                 \
        if (!next) next = NEXT(name);                 \
        at_path(path);                                \
        return next(path, flags, mode);               \
    }

WRAP_OPEN(open)
WRAP_OPEN(open64)

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static __typeof__(&getaddrinfo) next;
    if (!next) next = NEXT(getaddrinfo);
    if (host && name && strcmp(name, host) == 0) {
        if (hangs()) wait_while_it_hangs();
        name = "127.0.0.1";
    }
    return next(name, service, hints, found);
}
