//! What processes send each other, as bytes.
//!
//!   [ "MPIP" | version u16 | kind u16 | length u32 | payload … ]       little endian
//!
//! Pool         u64 token; its descriptor travels beside the bytes
//! Allocation   u64 pool token · u64 number · u64 bytes · 64 bytes allocation · 64 bytes `ready` · 64 bytes `finished`
//! Finished     u64 pool token · u64 number · u8 how
//!
//! Reading      checks magic, version, kind and length before anything else; what is inside the 64 bytes is the
//!              driver's.
//! Transport    any: the bytes of an allocation may go through a file or a pipe. Only a pool needs a socket.

use std::ops::Range;

use crate::driver::OpaqueHandle;
use crate::error::{MemoryError, Result};

const MAGIC: [u8; 4] = *b"MPIP";

/// Raised whenever the meaning of the bytes changes.
pub const WIRE_VERSION: u16 = 1;

pub(super) const HEADER_BYTES: usize = 12;
const OPAQUE_BYTES: usize = size_of::<OpaqueHandle>();

/// What a message is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Pool = 1,
    Allocation = 2,
    Finished = 3,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Pool, Kind::Allocation, Kind::Finished];

    fn payload_bytes(self) -> usize {
        match self {
            Kind::Pool => 8,
            Kind::Allocation => 24 + 3 * OPAQUE_BYTES,
            Kind::Finished => 17,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Kind::Pool => "an exported pool",
            Kind::Allocation => "a shared allocation",
            Kind::Finished => "an acknowledgement",
        }
    }
}

fn bad<T>(what: &'static str, problem: String) -> Result<T> {
    Err(MemoryError::IpcMessage { what, problem })
}

/// What the header says: the kind, and the bytes of the whole message.
pub(super) fn read_header(header: &[u8; HEADER_BYTES]) -> Result<(Kind, usize)> {
    const WHAT: &str = "a message of another process";
    let [m0, m1, m2, m3, v0, v1, k0, k1, l0, l1, l2, l3] = *header;
    if [m0, m1, m2, m3] != MAGIC {
        return bad(WHAT, format!("they begin with {:02x?}, not with \"MPIP\"", [m0, m1, m2, m3]));
    }
    let version = u16::from_le_bytes([v0, v1]);
    if version != WIRE_VERSION {
        return bad(WHAT, format!("version {version}, where this side speaks {WIRE_VERSION}; run one release on both"));
    }
    let number = u16::from_le_bytes([k0, k1]);
    let Some(kind) = Kind::ALL.into_iter().find(|kind| *kind as u16 == number) else {
        return bad(WHAT, format!("kind {number} is unknown"));
    };
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length != kind.payload_bytes() {
        return bad(kind.words(), format!("{length} bytes of payload, where it has {}", kind.payload_bytes()));
    }
    Ok((kind, HEADER_BYTES + length))
}

/// The payload of a message that must be of this kind.
fn payload(bytes: &[u8], wanted: Kind) -> Result<&[u8]> {
    let what = wanted.words();
    let Some((header, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return bad(what, format!("{} bytes are not even a header of {HEADER_BYTES}", bytes.len()));
    };
    let (kind, length) = read_header(header)?;
    if kind != wanted {
        return bad(what, format!("they are {}", kind.words()));
    }
    if bytes.len() != length {
        return bad(what, format!("{} bytes, where it has {length}", bytes.len()));
    }
    Ok(payload)
}

fn message(kind: Kind, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + kind.payload_bytes());
    bytes.extend(MAGIC);
    bytes.extend(WIRE_VERSION.to_le_bytes());
    bytes.extend((kind as u16).to_le_bytes());
    bytes.extend((kind.payload_bytes() as u32).to_le_bytes());
    parts.iter().for_each(|part| bytes.extend(*part));
    debug_assert_eq!(bytes.len(), HEADER_BYTES + kind.payload_bytes());
    bytes
}

fn word(payload: &[u8], at: usize) -> u64 {
    let bytes = payload[at..at + 8].first_chunk().expect("the payload has the length of its kind");
    u64::from_le_bytes(*bytes)
}

fn opaque(payload: &[u8], range: Range<usize>) -> OpaqueHandle {
    *payload[range].first_chunk().expect("the payload has the length of its kind")
}

pub(super) fn pool_message(token: u64) -> Vec<u8> {
    message(Kind::Pool, &[&token.to_le_bytes()])
}

pub(super) fn read_pool_message(bytes: &[u8]) -> Result<u64> {
    Ok(word(payload(bytes, Kind::Pool)?, 0))
}

/// One allocation of an exported pool, on its way to one importer. Not cloned, so that it is opened once.
#[derive(PartialEq, Eq)]
pub struct SharedAllocation {
    pub(super) pool: u64,
    pub(super) number: u64,
    pub(super) len: u64,
    /// What the driver says about the allocation.
    pub(super) export: OpaqueHandle,
    /// The importer's first use comes after it.
    pub(super) ready: OpaqueHandle,
    /// The importer records it behind its last use.
    pub(super) finished: OpaqueHandle,
}

impl SharedAllocation {
    /// Its number with the exporter.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes that can be used.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Never: an empty buffer is not shared.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// For a transport of the caller's own.
    pub fn to_bytes(&self) -> Vec<u8> {
        let SharedAllocation { pool, number, len, export, ready, finished } = self;
        let [pool, number, len] = [pool, number, len].map(|word| word.to_le_bytes());
        message(Kind::Allocation, &[&pool, &number, &len, export, ready, finished])
    }

    /// Reads what `to_bytes` wrote.
    ///
    /// # Errors
    /// [`MemoryError::IpcMessage`] for bytes of another version, length or meaning.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let payload = payload(bytes, Kind::Allocation)?;
        let at = |index: usize| opaque(payload, 24 + index * OPAQUE_BYTES..24 + (index + 1) * OPAQUE_BYTES);
        let len = word(payload, 16);
        if len == 0 || len > isize::MAX as u64 {
            return bad(Kind::Allocation.words(), format!("an allocation of {len} bytes cannot be"));
        }
        Ok(SharedAllocation {
            pool: word(payload, 0),
            number: word(payload, 8),
            len,
            export: at(0),
            ready: at(1),
            finished: at(2),
        })
    }
}

impl std::fmt::Debug for SharedAllocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shared allocation {} of {} bytes", self.number, self.len)
    }
}

/// How an importer came to be done with an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinishedBy {
    /// The `finished` event is recorded: the exporter waits for it on its device.
    Event = 0,
    /// The importer's host has waited: nothing is left to wait for.
    Host = 1,
}

/// An importer's word that it is done with an allocation. The exporter takes the memory back for it.
#[derive(PartialEq, Eq, Debug)]
pub struct Finished {
    pub(super) pool: u64,
    pub(super) number: u64,
    pub(super) by: FinishedBy,
}

impl Finished {
    /// The number of the allocation, as in [`SharedAllocation::number`].
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn by(&self) -> FinishedBy {
        self.by
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        message(Kind::Finished, &[&self.pool.to_le_bytes(), &self.number.to_le_bytes(), &[self.by as u8]])
    }

    /// Reads what `to_bytes` wrote.
    ///
    /// # Errors
    /// [`MemoryError::IpcMessage`] for bytes of another version, length or meaning.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let payload = payload(bytes, Kind::Finished)?;
        let by = match payload[16] {
            0 => FinishedBy::Event,
            1 => FinishedBy::Host,
            other => return bad(Kind::Finished.words(), format!("done in way {other}, which is unknown")),
        };
        Ok(Finished { pool: word(payload, 0), number: word(payload, 8), by })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation() -> SharedAllocation {
        SharedAllocation { pool: 7, number: 0x0102, len: 4096, export: [1; 64], ready: [2; 64], finished: [3; 64] }
    }

    /// Written down by hand: the format is a promise to the other process.
    #[test]
    fn the_bytes_are_those_of_the_page() {
        let bytes = allocation().to_bytes();
        assert_eq!(bytes.len(), 12 + 24 + 192);
        assert_eq!(bytes[..12], [b'M', b'P', b'I', b'P', 1, 0, 2, 0, 216, 0, 0, 0]);
        assert_eq!(bytes[12..36], [7, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
        assert_eq!((bytes[36], bytes[99], bytes[100], bytes[164], bytes[227]), (1, 1, 2, 3, 3));
        assert_eq!(SharedAllocation::from_bytes(&bytes).unwrap(), allocation());

        let done = Finished { pool: 7, number: 9, by: FinishedBy::Host };
        let bytes = done.to_bytes();
        assert_eq!(bytes[..12], [b'M', b'P', b'I', b'P', 1, 0, 3, 0, 17, 0, 0, 0]);
        assert_eq!(bytes[12..], [7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(Finished::from_bytes(&bytes).unwrap(), done);
    }

    /// No byte of the header can be wrong unnoticed, and no length.
    #[test]
    fn bad_bytes_are_refused_with_what_is_wrong() {
        let good = allocation().to_bytes();
        let refused = |bytes: &[u8]| SharedAllocation::from_bytes(bytes).unwrap_err().to_string();
        for index in 0..HEADER_BYTES {
            let mut bytes = good.clone();
            bytes[index] ^= 0x40;
            refused(&bytes);
        }
        for len in [0, 1, HEADER_BYTES - 1, HEADER_BYTES, good.len() - 1] {
            assert!(refused(&good[..len]).contains("bytes"), "{len}");
        }
        let mut long = good.clone();
        long.push(0);
        assert!(refused(&long).contains("229 bytes, where it has 228"), "{}", refused(&long));

        let mut newer = good.clone();
        newer[4] = 2;
        assert!(refused(&newer).contains("version 2, where this side speaks 1"), "{}", refused(&newer));
        let mut strange = good.clone();
        strange[0] = b'X';
        assert!(refused(&strange).contains("not with \"MPIP\""));
        let mut empty = good;
        empty[28..36].fill(0);
        assert!(refused(&empty).contains("0 bytes cannot be"));

        let other = pool_message(1);
        assert!(refused(&other).contains("they are an exported pool"));
        let mut odd = Finished { pool: 1, number: 1, by: FinishedBy::Event }.to_bytes();
        *odd.last_mut().unwrap() = 9;
        assert!(Finished::from_bytes(&odd).unwrap_err().to_string().contains("way 9"));
    }
}
