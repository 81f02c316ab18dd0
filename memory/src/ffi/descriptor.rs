//! Receives file descriptors from another process, and identifies that process's user.
//!
//! Owned    each received descriptor closes itself, once; a child process started later does not inherit it.
//! User     reported by the kernel, noted when the sockets were connected: no message can claim another user.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use sendfd::RecvWithFd;

/// Maximum number of descriptors per read; the kernel closes the others.
const MOST: usize = 4;

/// Reads some bytes, and the descriptors sent with the first of them. 0 bytes: the other side is closed.
pub(crate) fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut raw: [RawFd; MOST] = [-1; MOST];
    let (read, count) = socket.recv_with_fd(bytes, &mut raw)?;
    let received: Vec<OwnedFd> = raw[..count]
        .iter()
        // SAFETY: the kernel has just created these `count` descriptors for this process; nothing else owns them.
        .map(|&raw| unsafe { OwnedFd::from_raw_fd(raw) })
        .collect();
    // The clone is close-on-exec; the received descriptor is not.
    let kept = received.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<OwnedFd>>>()?;
    Ok((read, kept))
}

/// User ID of the process at the other end.
#[cfg(target_os = "linux")]
pub(crate) fn peer_user(socket: &UnixStream) -> io::Result<u32> {
    use std::os::fd::AsRawFd;

    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("a few bytes");
    // SAFETY: the socket is open, and the option's value is one `ucred`, as long as `len` says.
    let code = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len)
    };
    if code == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}

/// Other systems have other interfaces for this, and no CUDA.
#[cfg(not(target_os = "linux"))]
pub(crate) fn peer_user(_: &UnixStream) -> io::Result<u32> {
    Err(io::ErrorKind::Unsupported.into())
}

/// User ID of this process.
pub(crate) fn own_user() -> io::Result<u32> {
    // Both ends of the pair belong to this process, so the peer's user is its own.
    let (ours, _theirs) = UnixStream::pair()?;
    peer_user(&ours)
}
