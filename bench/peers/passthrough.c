/* A pass-through of one file on libfuse's low-level interface, one thread, direct I/O: what a
 * compiled daemon reaches on this machine.
 *
 *     cc -O2 -o passthrough passthrough.c $(pkg-config --cflags --libs fuse3)
 *     passthrough MOUNTPOINT BACKING_FILE          shows BACKING_FILE as MOUNTPOINT/disk
 *
 * Prints "ready" once mounted; ends on SIGTERM or unmount.
 */
#define FUSE_USE_VERSION 31
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_INODE 2
#define TIMEOUT_S 300.0

static int backing;
static off_t size_bytes;
static char *buffer;
#define BUFFER_BYTES (1 << 20)

static int attributes(fuse_ino_t inode, struct stat *st)
{
    memset(st, 0, sizeof(*st));
    st->st_ino = inode;
    if (inode == FUSE_ROOT_ID) {
        st->st_mode = S_IFDIR | 0755;
        st->st_nlink = 2;
    } else if (inode == FILE_INODE) {
        st->st_mode = S_IFREG | 0600;
        st->st_nlink = 1;
        st->st_size = size_bytes;
    } else {
        return -1;
    }
    return 0;
}

static void op_init(void *data, struct fuse_conn_info *connection)
{
    (void)data;
    (void)connection;
    puts("ready");
    fflush(stdout);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry;
    if (parent != FUSE_ROOT_ID || strcmp(name, "disk") != 0) {
        fuse_reply_err(req, ENOENT);
        return;
    }
    memset(&entry, 0, sizeof(entry));
    entry.ino = FILE_INODE;
    entry.attr_timeout = entry.entry_timeout = TIMEOUT_S;
    attributes(FILE_INODE, &entry.attr);
    fuse_reply_entry(req, &entry);
}

static void op_getattr(fuse_req_t req, fuse_ino_t inode, struct fuse_file_info *fi)
{
    struct stat st;
    (void)fi;
    if (attributes(inode, &st) != 0)
        fuse_reply_err(req, ENOENT);
    else
        fuse_reply_attr(req, &st, TIMEOUT_S);
}

static void op_setattr(fuse_req_t req, fuse_ino_t inode, struct stat *wanted, int what,
                       struct fuse_file_info *fi)
{
    (void)wanted;
    (void)what;
    op_getattr(req, inode, fi);
}

static void op_open(fuse_req_t req, fuse_ino_t inode, struct fuse_file_info *fi)
{
    if (inode != FILE_INODE) {
        fuse_reply_err(req, EISDIR);
        return;
    }
    fi->direct_io = 1;
    fuse_reply_open(req, fi);
}

static void op_read(fuse_req_t req, fuse_ino_t inode, size_t size, off_t off,
                    struct fuse_file_info *fi)
{
    ssize_t got;
    (void)inode;
    (void)fi;
    got = pread(backing, buffer, size < BUFFER_BYTES ? size : BUFFER_BYTES, off);
    if (got < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_buf(req, buffer, (size_t)got);
}

static void op_write(fuse_req_t req, fuse_ino_t inode, const char *data, size_t size, off_t off,
                     struct fuse_file_info *fi)
{
    ssize_t put;
    (void)inode;
    (void)fi;
    put = pwrite(backing, data, size, off);
    if (put < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_write(req, (size_t)put);
}

static void op_fsync(fuse_req_t req, fuse_ino_t inode, int datasync, struct fuse_file_info *fi)
{
    (void)inode;
    (void)datasync;
    (void)fi;
    fuse_reply_err(req, fsync(backing) == 0 ? 0 : errno);
}

static const struct fuse_lowlevel_ops operations = {
    .init = op_init,
    .lookup = op_lookup,
    .getattr = op_getattr,
    .setattr = op_setattr,
    .open = op_open,
    .read = op_read,
    .write = op_write,
    .fsync = op_fsync,
};

int main(int argc, char **argv)
{
    char *fuse_argv[] = {argv[0], "-o", "default_permissions,fsname=c"};
    struct fuse_args arguments = FUSE_ARGS_INIT(3, fuse_argv);
    struct fuse_session *session;
    int failed;

    if (argc != 3) {
        fprintf(stderr, "usage: %s MOUNTPOINT BACKING_FILE\n", argv[0]);
        return 2;
    }
    backing = open(argv[2], O_RDWR);
    if (backing < 0 || posix_memalign((void **)&buffer, 4096, BUFFER_BYTES) != 0) {
        perror(argv[2]);
        return 1;
    }
    size_bytes = lseek(backing, 0, SEEK_END);
    session = fuse_session_new(&arguments, &operations, sizeof(operations), NULL);
    if (session == NULL || fuse_set_signal_handlers(session) != 0
        || fuse_session_mount(session, argv[1]) != 0)
        return 1;
    failed = fuse_session_loop(session);
    fuse_session_unmount(session);
    fuse_remove_signal_handlers(session);
    fuse_session_destroy(session);
    return failed < 0;
}
