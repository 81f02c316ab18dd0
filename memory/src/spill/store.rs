//! Host memory for spilled bytes: pinned pages, then ordinary memory through a bounce page.
//!
//!   device ──copy──► pinned page                          while pages are free: the host does not wait
//!   device ──copy──► bounce page ──memcpy──► ordinary     when no page is free: the host waits for each part
//!
//! In advance   pages, including the bounce page, are page-locked when the store is created: spilling allocates none.
//! Bounded      pinned pages in use or in flight, and ordinary bytes, each by a separate limit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::SpillOptions;
use crate::buffer::DeviceView;
use crate::device::Device;
use crate::driver::HostKind;
use crate::error::{MemoryError, Result};
use crate::pinned::{PinnedBuffer, PinnedPool};
use crate::stream::Stream;
use crate::units::ByteSize;

const SMALLEST_PAGE: u64 = 4096;

pub(super) struct Store {
    pinned: PinnedPool,
    page: usize,
    pinned_limit: u64,
    host_limit: u64,
    host_bytes: AtomicU64,
    bounce: Mutex<Bounce>,
    bounce_is_back: Condvar,
}

/// The bounce page. `None` and not lent: it was lost with a failed copy.
#[derive(Default)]
struct Bounce {
    page: Option<PinnedBuffer>,
    lent: bool,
}

/// Ordinary memory, counted in the store.
pub(super) struct Plain {
    bytes: Vec<u8>,
    store: Arc<Store>,
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.store.host_bytes.fetch_sub(self.bytes.len() as u64, Relaxed);
    }
}

/// Contiguous host space for a number of bytes, in pages and then ordinary memory.
pub(super) struct Room {
    pages: Vec<PinnedBuffer>,
    page: usize,
    plain: Option<Plain>,
}

impl Room {
    pub(super) fn pinned_bytes(&self) -> u64 {
        (self.pages.len() * self.page) as u64
    }

    pub(super) fn plain_bytes(&self) -> u64 {
        self.plain.as_ref().map_or(0, |plain| plain.bytes.len() as u64)
    }

    fn in_pages(&self) -> usize {
        self.pages.len() * self.page
    }

    /// Copies all of `from` to the space at offset `at`, in the order of `stream`.
    pub(super) fn save(&mut self, from: &DeviceView, at: usize, stream: &Stream) -> Result<()> {
        let (mut done, len) = (0, from.len());
        while done < len {
            let place = at + done;
            if place < self.in_pages() {
                let (index, offset) = (place / self.page, place % self.page);
                let part = (self.page - offset).min(len - done);
                self.pages[index].enqueue_to_host(offset..offset + part, &from.view(done..done + part)?, stream)?;
                done += part;
            } else {
                let in_pages = self.in_pages();
                let plain = self.plain.as_mut().expect("room was made for all bytes");
                let part = self.page.min(len - done);
                let to = place - in_pages;
                let store = Arc::clone(&plain.store);
                let bytes = &mut plain.bytes[to..to + part];
                let view = from.view(done..done + part)?;
                store.with_bounce(|mut bounce| {
                    bounce.enqueue_to_host(0..part, &view, stream)?;
                    let bounce = bounce.idle()?.wait()?;
                    bytes.copy_from_slice(&bounce.read()?[..part]);
                    Ok(bounce)
                })?;
                done += part;
            }
        }
        Ok(())
    }

    /// Copies the bytes at offset `at` to all of `to`, on the host.
    pub(super) fn read(&self, at: usize, to: &mut [u8]) -> Result<()> {
        let (mut done, len) = (0, to.len());
        while done < len {
            let place = at + done;
            let in_pages = self.in_pages();
            let to = &mut to[done..];
            done += if place < in_pages {
                let (index, offset) = (place / self.page, place % self.page);
                let part = (self.page - offset).min(to.len());
                to[..part].copy_from_slice(&self.pages[index].read()?[offset..offset + part]);
                part
            } else {
                let plain = self.plain.as_ref().expect("room was made for all bytes");
                let from = place - in_pages;
                to.copy_from_slice(&plain.bytes[from..from + to.len()]);
                to.len()
            };
        }
        Ok(())
    }

    /// Copies the bytes at offset `at` to all of `to`, in the order of `stream`.
    pub(super) fn load(&mut self, at: usize, to: &DeviceView, stream: &Stream) -> Result<()> {
        let (mut done, len) = (0, to.len());
        while done < len {
            let place = at + done;
            let in_pages = self.in_pages();
            if place < in_pages {
                let (index, offset) = (place / self.page, place % self.page);
                let part = (self.page - offset).min(len - done);
                self.pages[index].enqueue_to_device(offset..offset + part, &to.view(done..done + part)?, stream)?;
                done += part;
            } else {
                let plain = self.plain.as_ref().expect("room was made for all bytes");
                let part = self.page.min(len - done);
                let from = place - in_pages;
                let bytes = &plain.bytes[from..from + part];
                let view = to.view(done..done + part)?;
                // A free page is returned automatically; a copy from the bounce page must be waited for.
                match plain.store.spare_page() {
                    Some(mut page) => {
                        page.write()?[..part].copy_from_slice(bytes);
                        page.enqueue_to_device(0..part, &view, stream)?;
                    }
                    None => plain.store.with_bounce(|mut bounce| {
                        bounce.write()?[..part].copy_from_slice(bytes);
                        bounce.enqueue_to_device(0..part, &view, stream)?;
                        bounce.idle()?.wait()
                    })?,
                }
                done += part;
            }
        }
        Ok(())
    }
}

impl Store {
    /// # Errors
    /// [`MemoryError::Setting`] for a page below 4 KiB or not a power of two, or for a limit below the reserve or below
    /// a page.
    pub(super) fn new(device: &Device, options: &SpillOptions) -> Result<Arc<Self>> {
        let page = options.page.as_u64();
        if page < SMALLEST_PAGE || !page.is_power_of_two() || page > 1 << 30 {
            let valid = "a power of two from 4 KiB to 1 GiB".into();
            return Err(MemoryError::Setting { what: "spill page", value: options.page.to_string(), valid });
        }
        let least = options.pinned_reserve.max(options.page);
        if options.pinned_limit < least {
            let (value, valid) =
                (options.pinned_limit.to_string(), format!("at least {least}, the reserve and a page"));
            return Err(MemoryError::Setting { what: "limit of pinned spill memory", value, valid });
        }
        let pinned = PinnedPool::builder(device).max_bytes(options.pinned_limit).build();
        let page = page as usize;
        // Taken together, so that each is a separate page; then they are free, and stay page-locked.
        let reserve = (options.pinned_reserve.as_u64() / page as u64).max(1);
        let mut pages = Vec::new();
        for _ in 0..reserve {
            pages.push(pinned.take_now(HostKind::Download, page)?);
        }
        let bounce = pages.pop();
        drop(pages);
        Ok(Arc::new(Store {
            pinned,
            page,
            pinned_limit: options.pinned_limit.as_u64(),
            host_limit: options.host_limit.as_u64(),
            host_bytes: AtomicU64::new(0),
            bounce: Mutex::new(Bounce { page: bounce, lent: false }),
            bounce_is_back: Condvar::new(),
        }))
    }

    /// Pinned bytes in use or in flight, except the bounce page.
    pub(super) fn pinned_bytes(&self) -> ByteSize {
        self.pinned.statistics().lent.saturating_sub(ByteSize::from(self.page))
    }

    pub(super) fn host_bytes(&self) -> ByteSize {
        ByteSize(self.host_bytes.load(Relaxed))
    }

    fn spare_page(&self) -> Option<PinnedBuffer> {
        // The pool serves small pages beyond its limit, so the limit is checked here.
        if self.pinned.statistics().lent.as_u64() + self.page as u64 > self.pinned_limit {
            return None;
        }
        self.pinned.take_now(HostKind::Download, self.page).ok()
    }

    /// Space for `bytes`: free pages first, ordinary memory for the rest. `None` if both are full.
    pub(super) fn room(self: &Arc<Self>, bytes: usize) -> Option<Room> {
        let mut pages = Vec::new();
        while pages.len() * self.page < bytes {
            match self.spare_page() {
                Some(page) => pages.push(page),
                None => break,
            }
        }
        let rest = bytes.saturating_sub(pages.len() * self.page);
        let plain = match rest {
            0 => None,
            rest => {
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(rest).ok()?;
                bytes.resize(rest, 0);
                let grow = |held: u64| held.checked_add(rest as u64).filter(|&sum| sum <= self.host_limit);
                self.host_bytes.fetch_update(Relaxed, Relaxed, grow).ok()?;
                Some(Plain { bytes, store: Arc::clone(self) })
            }
        };
        Some(Room { pages, page: self.page, plain })
    }

    /// Lends the bounce page to one caller at a time.
    fn with_bounce(&self, work: impl FnOnce(PinnedBuffer) -> Result<PinnedBuffer>) -> Result<()> {
        let mut slot = self.bounce();
        while slot.lent {
            slot = self.bounce_is_back.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
        slot.lent = true;
        let bounce = slot.page.take();
        drop(slot);
        let bounce = match bounce {
            Some(bounce) => Ok(bounce),
            None => self.pinned.take_now(HostKind::Download, self.page),
        };
        let done = bounce.and_then(work);
        let mut slot = self.bounce();
        slot.lent = false;
        let done = done.map(|bounce| slot.page = Some(bounce));
        drop(slot);
        self.bounce_is_back.notify_one();
        done
    }

    fn bounce(&self) -> MutexGuard<'_, Bounce> {
        self.bounce.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
