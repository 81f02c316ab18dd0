//! A UNIX socket between two processes that share device memory.
//!
//!   socket ─► bytes, descriptors ─► whole messages ─► inbox: pools, allocations, acknowledgements, each in its order
//!
//! Peer       a process of the same user, as reported by the kernel. A peer that sends allocations decides what memory
//!            kernels access.
//! Inbox      a receive call for one kind of message queues the others, up to a limit; a peer that exceeds it is cut
//!            off. Until the receiver reads, the kernel's socket buffer blocks the sender.
//! Timeouts   lose nothing: the received part of a message is kept.
//! Errors     invalid bytes end the channel: the start of the next message is unknown.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sendfd::SendWithFd;

use super::export::{ExportedPool, LentBuffer, NotReclaimed, OnSilence, Returned, Silence};
use super::import::ImportedPool;
use super::wire::{self, Finished, HEADER_BYTES, Kind, SharedAllocation};
use crate::device::Device;
use crate::error::{MemoryError, Result};
use crate::ffi::descriptor;
use crate::stream::Stream;

/// Maximum number of received allocations, and of acknowledgements, that wait in the inbox.
pub const MOST_WAITING: usize = 4096;

/// Maximum number of received pools in the inbox; each is an open descriptor.
pub const MOST_WAITING_POOLS: usize = 64;

/// Messages between an exporter and an importer, either way.
#[derive(Debug)]
pub struct IpcChannel {
    socket: UnixStream,
    /// Received bytes that do not form a whole message yet.
    partial: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    pools: VecDeque<(u64, OwnedFd)>,
    allocations: VecDeque<SharedAllocation>,
    finished: VecDeque<Finished>,
    closed: bool,
    broken: Option<MemoryError>,
}

impl IpcChannel {
    /// A channel to a process of the same user. To one of another user, every call gives
    /// [`MemoryError::IpcForeignUser`].
    pub fn new(socket: UnixStream) -> Self {
        let ours = descriptor::own_user();
        Self::checked(socket, ours)
    }

    /// A channel to a process of `user`: for a service that serves another user on purpose.
    pub fn with_user(socket: UnixStream, user: u32) -> Self {
        Self::checked(socket, Ok(user))
    }

    fn checked(socket: UnixStream, expected: std::io::Result<u32>) -> Self {
        const WHAT: &str = "device memory";
        let users = expected.and_then(|expected| Ok((expected, descriptor::peer_user(&socket)?)));
        let broken = match users {
            Ok((expected, peer)) if peer == expected => None,
            Ok((expected, peer)) => Some(MemoryError::IpcForeignUser { what: WHAT, peer, expected }),
            Err(error) => Some(transport("the other process's user", &error)),
        };
        IpcChannel {
            socket,
            partial: Vec::new(),
            descriptors: VecDeque::new(),
            pools: VecDeque::new(),
            allocations: VecDeque::new(),
            finished: VecDeque::new(),
            closed: false,
            broken,
        }
    }

    // 1. Sending.

    /// Sends the pool: its descriptor, by value, beside a message.
    pub fn send_pool(&mut self, pool: &ExportedPool) -> Result<()> {
        const WHAT: &str = "an exported pool";
        self.usable()?;
        let bytes = wire::pool_message(pool.token());
        let descriptors = [pool.descriptor().as_raw_fd()];
        loop {
            match self.socket.send_with_fd(&bytes, &descriptors) {
                // The descriptor went with the first byte.
                Ok(sent) => return self.write(WHAT, &bytes[sent..]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(transport(WHAT, &error)),
            }
        }
    }

    pub fn send(&mut self, allocation: &SharedAllocation) -> Result<()> {
        self.write("a shared allocation", &allocation.to_bytes())
    }

    pub fn send_finished(&mut self, finished: &Finished) -> Result<()> {
        self.write("an acknowledgement", &finished.to_bytes())
    }

    /// Sends word of every allocation that `pool` is done with since the last time. Returns how many.
    pub fn send_all_finished(&mut self, pool: &ImportedPool) -> Result<usize> {
        let finished = pool.take_finished();
        finished.iter().try_for_each(|finished| self.send_finished(finished))?;
        Ok(finished.len())
    }

    /// `Err` once the channel has failed.
    fn usable(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    fn write(&mut self, what: &'static str, bytes: &[u8]) -> Result<()> {
        self.usable()?;
        self.socket.write_all(bytes).map_err(|error| transport(what, &error))
    }

    // 2. Receiving.

    /// The next pool, imported on `device`, where its memory lies. `None`: nothing came in time.
    ///
    /// # Errors
    /// [`MemoryError::IpcClosed`] when the other side is gone, [`MemoryError::IpcMessage`] for bytes that are no
    /// message.
    pub fn receive_pool(&mut self, device: &Device, timeout: Duration) -> Result<Option<ImportedPool>> {
        if !self.receive_until("an exported pool", timeout, |channel| !channel.pools.is_empty())? {
            return Ok(None);
        }
        let (token, descriptor) = self.pools.pop_front().expect("received above");
        ImportedPool::import_with_token(&descriptor, device, Some(token)).map(Some)
    }

    /// The next allocation.
    ///
    /// # Errors
    /// As for [`IpcChannel::receive_pool`].
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<SharedAllocation>> {
        self.receive_until("a shared allocation", timeout, |channel| !channel.allocations.is_empty())?;
        Ok(self.allocations.pop_front())
    }

    /// The next acknowledgement, of whichever allocation.
    ///
    /// # Errors
    /// As for [`IpcChannel::receive_pool`].
    pub fn receive_finished(&mut self, timeout: Duration) -> Result<Option<Finished>> {
        self.receive_until("an acknowledgement", timeout, |channel| !channel.finished.is_empty())?;
        Ok(self.finished.pop_front())
    }

    /// Waits for the importer's acknowledgement of `lent` and takes the buffer back, in the order of `stream`. If the
    /// importer sends nothing for `patience`, or its end is closed, `on_silence` decides.
    ///
    /// # Errors
    /// [`NotReclaimed`], with the lent buffer in it.
    pub fn reclaim(
        &mut self,
        lent: LentBuffer,
        stream: &Stream,
        patience: Duration,
        on_silence: OnSilence,
    ) -> std::result::Result<Returned, NotReclaimed> {
        let number = lent.number();
        let is_it = |finished: &Finished| finished.number() == number;
        let come = self.receive_until("an acknowledgement", patience, |channel| channel.finished.iter().any(is_it));
        let silence = match come {
            Ok(true) => {
                let index = self.finished.iter().position(is_it).expect("received above");
                let finished = self.finished.remove(index).expect("its index was just found");
                return lent.reclaim(&finished, stream).map(Returned::Buffer);
            }
            Ok(false) => Silence::TimedOut(patience),
            Err(MemoryError::IpcClosed { .. }) => Silence::Closed,
            Err(error) => return Err(NotReclaimed::new(lent, error)),
        };
        Ok(match lent.give_up(on_silence) {
            Some(lent) => Returned::Kept { lent, silence },
            None => Returned::Dropped { silence },
        })
    }

    /// Reads until `enough`; `false` when the time is over first.
    fn receive_until(&mut self, what: &'static str, timeout: Duration, enough: impl Fn(&Self) -> bool) -> Result<bool> {
        // A timeout that no clock can hold is none.
        let until = Instant::now().checked_add(timeout);
        loop {
            if enough(self) {
                return Ok(true);
            }
            self.usable()?;
            if self.closed {
                return Err(MemoryError::IpcClosed { what });
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) && !timeout.is_zero() {
                return Ok(false);
            }
            // 0 would be "for ever" to the socket: the shortest wait looks once.
            let left = left.map(|left| left.max(Duration::from_millis(1)));
            self.socket.set_read_timeout(left).map_err(|error| transport(what, &error))?;
            let mut bytes = [0; 1024];
            match descriptor::receive(&self.socket, &mut bytes) {
                Ok((0, _)) => self.closed = true,
                Ok((read, descriptors)) => {
                    self.partial.extend(&bytes[..read]);
                    self.descriptors.extend(descriptors);
                    if let Err(error) = self.sort() {
                        self.broken = Some(error);
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut if timeout.is_zero() => return Ok(false),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => {}
                    // A process that ended with bytes of ours unread: as gone as one that closed.
                    ErrorKind::ConnectionReset => self.closed = true,
                    _ => return Err(transport(what, &error)),
                },
            }
        }
    }

    /// Puts every whole message where it belongs.
    fn sort(&mut self) -> Result<()> {
        while let Some(header) = self.partial.first_chunk::<HEADER_BYTES>() {
            let (kind, length) = wire::read_header(header)?;
            if self.partial.len() < length {
                return Ok(());
            }
            let message: Vec<u8> = self.partial.drain(..length).collect();
            match kind {
                Kind::Pool => {
                    let token = wire::read_pool_message(&message)?;
                    let Some(descriptor) = self.descriptors.pop_front() else {
                        let problem = "no descriptor came with it".to_string();
                        return Err(MemoryError::IpcMessage { what: "an exported pool", problem });
                    };
                    keep(&mut self.pools, (token, descriptor), "pools", MOST_WAITING_POOLS)?;
                }
                Kind::Allocation => {
                    let allocation = SharedAllocation::from_bytes(&message)?;
                    keep(&mut self.allocations, allocation, "shared allocations", MOST_WAITING)?;
                }
                Kind::Finished => {
                    keep(&mut self.finished, Finished::from_bytes(&message)?, "acknowledgements", MOST_WAITING)?;
                }
            }
        }
        // Descriptors come with pools, one each.
        if self.descriptors.len() > MOST_WAITING_POOLS {
            return Err(MemoryError::IpcFlooded { what: "descriptors", limit: MOST_WAITING_POOLS });
        }
        Ok(())
    }
}

/// Stores a message in the inbox until the caller receives it.
fn keep<T>(inbox: &mut VecDeque<T>, message: T, what: &'static str, limit: usize) -> Result<()> {
    if inbox.len() == limit {
        return Err(MemoryError::IpcFlooded { what, limit });
    }
    inbox.push_back(message);
    Ok(())
}

fn transport(what: &'static str, error: &std::io::Error) -> MemoryError {
    match error.kind() {
        ErrorKind::BrokenPipe => MemoryError::IpcClosed { what },
        _ => MemoryError::IpcTransport { what, error: error.to_string() },
    }
}
