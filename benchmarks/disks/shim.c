/* Shim: a library laid before libc's calls to the disk; once armed, the n-th of them fails as it is told to.
 *
 * Calls of descriptors below 3 and of sockets and pipes are not counted: only regular files and folders, and names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static long count, first = -1, second = -1;
static int error_first, error_second; /* an errno, or 0: a short write */
static int for_good; /* the first strike is followed by nothing but more of them: the disk is gone */
static int writes_only; /* reads and syncs are neither counted nor failed: a full disk reads as ever */
static char folder[4096];

void shim_arm(const char *below, long n, int error, long m, int other, int writes, int gone)
{
    writes_only = writes, for_good = gone;
    strncpy(folder, below, sizeof folder - 1);
    error_first = error, error_second = other;
    count = 0, first = n, second = m;
}

long shim_count(void) { return count; }

static int ours(int file)
{
    struct stat found;
    return first >= 0 && file > 2 && fstat(file, &found) == 0 && (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode));
}

/* -1: go on; else the errno to give, 0 for a short write. */
static int strikes(int writes)
{
    if (writes_only && !writes)
        return -1;
    long now = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (now == first || (for_good && now > first))
        return error_first;
    return now == second ? error_second : -1;
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)

#define WRITES(name, offset)                                                       \
    ssize_t name(int file, const void *data, size_t length, offset at)             \
    {                                                                              \
        REAL(ssize_t, name, int, const void *, size_t, offset);                    \
        int how = ours(file) ? strikes(1) : -1;                                    \
        if (how > 0) { errno = how; return -1; }                                   \
        return real(file, data, how == 0 && length > 1 ? length / 2 : length, at); \
    }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)

ssize_t write(int file, const void *data, size_t length)
{
    REAL(ssize_t, write, int, const void *, size_t);
    int how = ours(file) ? strikes(1) : -1;
    if (how > 0) { errno = how; return -1; }
    return real(file, data, how == 0 && length > 1 ? length / 2 : length);
}

/* What cannot be short fails for good in place of a short write. */
#define FAILS(type, name, shape, words, writes)                   \
    type name shape                                               \
    {                                                             \
        REAL(type, name, SHAPE_##name);                           \
        int how = ours(file) ? strikes(writes) : -1;              \
        if (how >= 0) { errno = how ? how : EIO; return -1; }     \
        return real words;                                        \
    }
#define SHAPE_fsync int
#define SHAPE_fdatasync int
#define SHAPE_ftruncate int, off_t
#define SHAPE_ftruncate64 int, off64_t
#define SHAPE_pread int, void *, size_t, off_t
#define SHAPE_pread64 int, void *, size_t, off64_t
FAILS(int, fsync, (int file), (file), 0)
FAILS(int, fdatasync, (int file), (file), 0)
FAILS(int, ftruncate, (int file, off_t at), (file, at), 1)
FAILS(int, ftruncate64, (int file, off64_t at), (file, at), 1)
FAILS(ssize_t, pread, (int file, void *to, size_t length, off_t at), (file, to, length, at), 0)
FAILS(ssize_t, pread64, (int file, void *to, size_t length, off64_t at), (file, to, length, at), 0)

#define OPENS(name)                                                                    \
    int name(const char *path, int flags, ...)                                         \
    {                                                                                  \
        REAL(int, name, const char *, int, ...);                                       \
        int mode = 0;                                                                  \
        if (flags & O_CREAT) {                                                         \
            va_list rest;                                                              \
            va_start(rest, flags);                                                     \
            mode = va_arg(rest, int);                                                  \
            va_end(rest);                                                              \
        }                                                                              \
        int how = first >= 0 && !strncmp(path, folder, strlen(folder)) ? strikes(flags & O_CREAT) : -1; \
        if (how >= 0) { errno = how ? how : EIO; return -1; }                          \
        return real(path, flags, mode);                                                \
    }
OPENS(open)
OPENS(open64)

int unlink(const char *path)
{
    REAL(int, unlink, const char *);
    int how = first >= 0 && !strncmp(path, folder, strlen(folder)) ? strikes(0) : -1;
    if (how >= 0) { errno = how ? how : EIO; return -1; }
    return real(path);
}
