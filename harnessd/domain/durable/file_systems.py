"""File systems: on which of them a store may lie; told from the kernel's table of mounts, which is handed in."""

from __future__ import annotations

# A lock on these says nothing about the other machine, and their write order is not ours to know.
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "9p", "fuse.sshfs", "fuse.glusterfs"}
)


def file_system_of(folder: str, mountinfo: str) -> str:
    """The type of the mount that `folder` lies on, from the text of `/proc/self/mountinfo`."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4].encode().decode("unicode_escape")
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), after.split(" ")[0]
    return kind
