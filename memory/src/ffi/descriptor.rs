//! Receives file descriptors from another process.
//!
//! Owned    what comes out closes itself, once; a child process that is started later does not inherit it.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use sendfd::RecvWithFd;

/// The most descriptors that one read takes; the kernel closes what is more.
const MOST: usize = 4;

/// Reads some bytes, and the descriptors that were sent with the first of them. 0 bytes: the other side is closed.
pub(crate) fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut raw: [RawFd; MOST] = [-1; MOST];
    let (read, count) = socket.recv_with_fd(bytes, &mut raw)?;
    let received: Vec<OwnedFd> = raw[..count]
        .iter()
        // SAFETY: the kernel has just made these `count` descriptors for this process and told nobody else of them.
        .map(|&raw| unsafe { OwnedFd::from_raw_fd(raw) })
        .collect();
    // A copy is closed on exec, what was received is not.
    let kept = received.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<OwnedFd>>>()?;
    Ok((read, kept))
}
