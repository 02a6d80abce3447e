/* Faults at the calls by which a process changes files.
 *
 * Preloaded (LD_PRELOAD), it stands between a process and the C library. Once `faults_arm` was called it counts the
 * calls that change something under one directory, writes each to a log, and at a given number kills the process, cuts
 * a write in two, or answers with an error. Everything else passes untouched, and so does everything in a process that
 * has not called `faults_arm`: what a forked process executes is not armed.
 *
 * fsync is not passed on: a killed process loses nothing that the kernel has, and what a loss of power would take is
 * worked out from the log.
 *
 * A line of the log, separated by tabs: number, call, inode, bytes (that are to be written; of fsync: the file's size),
 * errno (0: it succeeded; -1: the process was killed in it), path, second path.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* What happens at the call with the number `at`; the numbers stand in tests/faults/shim.py too. */
enum action {
    LOG,        /* nothing */
    KILL,       /* the process is killed before it */
    KILL_AFTER, /* the process is killed after it */
    TORN,       /* half of what is written is written, then the process is killed */
    FAIL,       /* it fails; the next calls succeed again */
    FULL,       /* half is written; from then on whatever needs room fails */
    DEAD,       /* it and all later calls fail */
    SIGNAL,     /* the process gets SIGTERM before it, and goes on as it likes */
};

enum verdict { PASS, REFUSE, HALF };

struct call {
    const char *name;
    long number, bytes;
    unsigned long inode;
    char path[PATH_MAX], other[PATH_MAX];
};

static char root[PATH_MAX];
static size_t root_length;
static int armed, log_file, action, error_number;
static long at, count;

int faults_arm(const char *directory, int log, int what, int error, long number) {
    root_length = strlen(directory);
    if (root_length >= PATH_MAX) return -1;
    strcpy(root, directory);
    log_file = log, action = what, error_number = error, at = number, count = 0;
    armed = 1;
    return 0;
}

static void record(const struct call *call, int error) {
    char line[2 * PATH_MAX + 128];
    int length = snprintf(line, sizeof line, "%ld\t%s\t%lu\t%ld\t%d\t%s\t%s\n", call->number, call->name, call->inode,
                          call->bytes, error, call->path, call->other);
    syscall(SYS_write, log_file, line, (size_t)length);
}

static void die(const struct call *call) {
    record(call, -1);
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static int inside(const char *path) {
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

/* The absolute path of an open file; empty if it has none. */
static void path_of(int descriptor, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, out, PATH_MAX - 1);
    out[length < 0 ? 0 : length] = 0;
}

/* The absolute path that a path, relative to a directory, names. Links and `..` stay as they are. */
static void locate(int directory, const char *path, char *out) {
    out[0] = 0;
    if (path == NULL) return;
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
        return;
    }
    if (directory == AT_FDCWD) {
        if (syscall(SYS_getcwd, out, PATH_MAX) < 0) out[0] = 0;
    } else {
        path_of(directory, out);
    }
    while (strncmp(path, "./", 2) == 0) path += 2;
    size_t length = strlen(out);
    snprintf(out + length, PATH_MAX - length, "/%s", path);
}

/* Whether a call on a path is one that counts. */
static int on_path(struct call *call, const char *name, int directory, const char *path) {
    if (!armed) return 0;
    call->name = name, call->bytes = 0, call->inode = 0, call->other[0] = 0;
    locate(directory, path, call->path);
    return inside(call->path);
}

/* The same for a call on an open file. */
static int on_file(struct call *call, const char *name, int descriptor, size_t bytes) {
    struct stat stat;
    if (!armed) return 0;
    call->name = name, call->bytes = (long)bytes, call->other[0] = 0;
    path_of(descriptor, call->path);
    if (!inside(call->path)) return 0;
    call->inode = fstat(descriptor, &stat) == 0 ? stat.st_ino : 0;
    return 1;
}

/* Count a call and decide what becomes of it. `grows`: it needs room on the disk. */
static enum verdict begin(struct call *call, int grows) {
    call->number = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    int error = 0;
    switch (action) {
        case KILL:
            if (call->number == at) die(call);
            break;
        case TORN:
            if (call->number == at) {
                if (call->bytes >= 2) return HALF;
                die(call);
            }
            break;
        case SIGNAL:
            if (call->number == at) syscall(SYS_kill, getpid(), SIGTERM);
            break;
        case FAIL:
            if (call->number == at) error = error_number;
            break;
        case FULL:
            if (call->number == at && call->bytes >= 2) return HALF;
            if (call->number >= at && grows) error = ENOSPC;
            break;
        case DEAD:
            if (call->number >= at) error = EIO;
            break;
    }
    if (!error) return PASS;
    record(call, error);
    errno = error;
    return REFUSE;
}

static long end(struct call *call, long result) {
    int error = errno;
    record(call, result < 0 ? error : 0);
    if (call->number == at && (action == KILL_AFTER || action == TORN)) die(call);
    errno = error;
    return result;
}

#define NEXT(type, name, ...)                          \
    static type (*next)(__VA_ARGS__);                  \
    if (!next) next = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

/* --- opening ------------------------------------------------------------------------------------------------- */

static int open_as(const char *name, int (*next)(int, const char *, int, mode_t), int directory, const char *path,
                   int flags, mode_t mode) {
    struct call call;
    struct stat stat;
    int changes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
    if (!changes || !on_path(&call, name, directory, path)) return next(directory, path, flags, mode);
    int there = fstatat(directory, path, &stat, 0) == 0;
    if (there && (flags & O_TRUNC)) call.inode = stat.st_ino;
    if (begin(&call, !there) == REFUSE) return -1;
    return (int)end(&call, next(directory, path, flags, mode));
}

static int next_openat(int directory, const char *path, int flags, mode_t mode) {
    NEXT(int, "openat64", int, const char *, int, ...);
    return next(directory, path, flags, mode);
}

#define MODE(flags, last)                              \
    mode_t mode = 0;                                   \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {           \
        va_list list;                                  \
        va_start(list, last);                          \
        mode = va_arg(list, mode_t);                   \
        va_end(list);                                  \
    }

int open(const char *path, int flags, ...) {
    MODE(flags, flags)
    return open_as("open", next_openat, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(flags, flags)
    return open_as("open", next_openat, AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...) {
    MODE(flags, flags)
    return open_as("open", next_openat, directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...) {
    MODE(flags, flags)
    return open_as("open", next_openat, directory, path, flags, mode);
}

int creat(const char *path, mode_t mode) {
    return open_as("open", next_openat, AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int creat64(const char *path, mode_t mode) { return creat(path, mode); }

static FILE *fopen_as(const char *path, const char *mode) {
    struct call call;
    NEXT(FILE *, "fopen64", const char *, const char *);
    if ((mode[0] == 'r' && !strchr(mode, '+')) || !on_path(&call, "fopen", AT_FDCWD, path)) return next(path, mode);
    if (begin(&call, 1) == REFUSE) return NULL;
    FILE *file = next(path, mode);
    end(&call, file ? 0 : -1);
    return file;
}

FILE *fopen(const char *path, const char *mode) { return fopen_as(path, mode); }
FILE *fopen64(const char *path, const char *mode) { return fopen_as(path, mode); }

/* --- writing ------------------------------------------------------------------------------------------------- */

ssize_t write(int file, const void *data, size_t bytes) {
    struct call call;
    NEXT(ssize_t, "write", int, const void *, size_t);
    if (!on_file(&call, "write", file, bytes)) return next(file, data, bytes);
    enum verdict verdict = begin(&call, 1);
    return verdict == REFUSE ? -1 : end(&call, next(file, data, verdict == HALF ? bytes / 2 : bytes));
}

static ssize_t pwrite_as(int file, const void *data, size_t bytes, off64_t offset) {
    struct call call;
    NEXT(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    if (!on_file(&call, "pwrite", file, bytes)) return next(file, data, bytes, offset);
    enum verdict verdict = begin(&call, 1);
    return verdict == REFUSE ? -1 : end(&call, next(file, data, verdict == HALF ? bytes / 2 : bytes, offset));
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset) { return pwrite_as(file, data, bytes, offset); }
ssize_t pwrite64(int file, const void *data, size_t bytes, off64_t offset) {
    return pwrite_as(file, data, bytes, offset);
}

ssize_t writev(int file, const struct iovec *parts, int number) {
    struct call call;
    size_t bytes = 0;
    NEXT(ssize_t, "writev", int, const struct iovec *, int);
    if (!armed) return next(file, parts, number);
    for (int i = 0; i < number; i++) bytes += parts[i].iov_len;
    if (!on_file(&call, "writev", file, bytes)) return next(file, parts, number);
    enum verdict verdict = begin(&call, 1);
    if (verdict == REFUSE) return -1;
    if (verdict == PASS) return end(&call, next(file, parts, number));
    ssize_t done = 0;
    for (int i = 0; i < number && (size_t)done < bytes / 2; i++) {
        size_t left = bytes / 2 - (size_t)done;
        done += syscall(SYS_write, file, parts[i].iov_base, parts[i].iov_len < left ? parts[i].iov_len : left);
    }
    return end(&call, done);
}

/* How much a copy from one file to another would write. */
static size_t left_of(int file, const off64_t *offset, size_t wanted) {
    struct stat stat;
    off64_t from = offset ? *offset : lseek64(file, 0, SEEK_CUR);
    if (fstat(file, &stat) != 0 || stat.st_size <= from) return 0;
    return (size_t)(stat.st_size - from) < wanted ? (size_t)(stat.st_size - from) : wanted;
}

static ssize_t sendfile_as(int to, int from, off64_t *offset, size_t bytes) {
    struct call call;
    NEXT(ssize_t, "sendfile64", int, int, off64_t *, size_t);
    if (!armed || !on_file(&call, "sendfile", to, left_of(from, offset, bytes))) return next(to, from, offset, bytes);
    enum verdict verdict = begin(&call, call.bytes > 0);
    return verdict == REFUSE ? -1 : end(&call, next(to, from, offset, verdict == HALF ? (size_t)call.bytes / 2 : bytes));
}

ssize_t sendfile(int to, int from, off_t *offset, size_t bytes) { return sendfile_as(to, from, offset, bytes); }
ssize_t sendfile64(int to, int from, off64_t *offset, size_t bytes) { return sendfile_as(to, from, offset, bytes); }

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t bytes, unsigned flags) {
    struct call call;
    NEXT(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    if (!armed || !on_file(&call, "copy", to, left_of(from, from_offset, bytes)))
        return next(from, from_offset, to, to_offset, bytes, flags);
    enum verdict verdict = begin(&call, call.bytes > 0);
    if (verdict == HALF) bytes = (size_t)call.bytes / 2;
    return verdict == REFUSE ? -1 : end(&call, next(from, from_offset, to, to_offset, bytes, flags));
}

/* Calls on an open file that write no bytes: NAME, what the log says, whether it needs room, parameters, arguments. */
#define FILE_CALL(name, label, real, grows, parameters, arguments)          \
    int name parameters {                                                   \
        struct call call;                                                   \
        static int(*next) parameters;                                       \
        if (!next) next = (int(*) parameters)dlsym(RTLD_NEXT, real);        \
        if (!on_file(&call, label, file, 0)) return next arguments;         \
        return begin(&call, grows) == REFUSE ? -1 : (int)end(&call, next arguments); \
    }

FILE_CALL(ftruncate, "truncate", "ftruncate64", 0, (int file, off_t size), (file, size))
FILE_CALL(ftruncate64, "truncate", "ftruncate64", 0, (int file, off64_t size), (file, size))
FILE_CALL(fallocate, "allocate", "fallocate64", 1, (int file, int mode, off_t from, off_t size), (file, mode, from, size))
FILE_CALL(fallocate64, "allocate", "fallocate64", 1, (int file, int mode, off64_t from, off64_t size), (file, mode, from, size))
FILE_CALL(fchmod, "chmod", "fchmod", 0, (int file, mode_t mode), (file, mode))

static int flush_as(int file, int (*next)(int)) {
    struct call call;
    struct stat stat;
    if (!on_file(&call, "fsync", file, 0)) return next(file);
    if (begin(&call, 0) == REFUSE) return -1;
    call.bytes = fstat(file, &stat) == 0 ? stat.st_size : 0;
    return (int)end(&call, 0);
}

int fsync(int file) {
    NEXT(int, "fsync", int);
    return flush_as(file, next);
}

int fdatasync(int file) {
    NEXT(int, "fdatasync", int);
    return flush_as(file, next);
}

/* --- names --------------------------------------------------------------------------------------------------- */

static int rename_as(int from, const char *old, int to, const char *new, unsigned flags) {
    struct call call;
    NEXT(int, "renameat2", int, const char *, int, const char *, unsigned);
    if (armed) {
        int leaves = on_path(&call, "rename", from, old);
        locate(to, new, call.other);
        if (leaves || inside(call.other))
            return begin(&call, 0) == REFUSE ? -1 : (int)end(&call, next(from, old, to, new, flags));
    }
    return next(from, old, to, new, flags);
}

int rename(const char *old, const char *new) { return rename_as(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return rename_as(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return rename_as(from, old, to, new, flags);
}

/* Calls on one path: NAME, what the log says, whether it needs room, its directory and path, parameters, arguments. */
#define PATH_CALL(name, label, real, grows, directory, path, parameters, arguments) \
    int name parameters {                                                           \
        struct call call;                                                           \
        static int(*next) parameters;                                               \
        if (!next) next = (int(*) parameters)dlsym(RTLD_NEXT, real);                \
        if (!on_path(&call, label, directory, path)) return next arguments;         \
        return begin(&call, grows) == REFUSE ? -1 : (int)end(&call, next arguments); \
    }

PATH_CALL(unlink, "unlink", "unlink", 0, AT_FDCWD, path, (const char *path), (path))
PATH_CALL(unlinkat, "unlink", "unlinkat", 0, from, path, (int from, const char *path, int flags), (from, path, flags))
PATH_CALL(remove, "unlink", "remove", 0, AT_FDCWD, path, (const char *path), (path))
PATH_CALL(rmdir, "rmdir", "rmdir", 0, AT_FDCWD, path, (const char *path), (path))
PATH_CALL(mkdir, "mkdir", "mkdir", 1, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
PATH_CALL(mkdirat, "mkdir", "mkdirat", 1, from, path, (int from, const char *path, mode_t mode), (from, path, mode))
PATH_CALL(truncate, "truncate", "truncate64", 0, AT_FDCWD, path, (const char *path, off_t size), (path, size))
PATH_CALL(truncate64, "truncate", "truncate64", 0, AT_FDCWD, path, (const char *path, off64_t size), (path, size))
PATH_CALL(chmod, "chmod", "chmod", 0, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
PATH_CALL(fchmodat, "chmod", "fchmodat", 0, from, path, (int from, const char *path, mode_t mode, int flags), (from, path, mode, flags))
PATH_CALL(link, "link", "link", 1, AT_FDCWD, path, (const char *old, const char *path), (old, path))
PATH_CALL(linkat, "link", "linkat", 1, to, path, (int from, const char *old, int to, const char *path, int flags), (from, old, to, path, flags))
PATH_CALL(symlink, "symlink", "symlink", 1, AT_FDCWD, path, (const char *old, const char *path), (old, path))
PATH_CALL(symlinkat, "symlink", "symlinkat", 1, to, path, (const char *old, int to, const char *path), (old, to, path))
PATH_CALL(utimensat, "times", "utimensat", 0, from, path, (int from, const char *path, const struct timespec times[2], int flags), (from, path, times, flags))
