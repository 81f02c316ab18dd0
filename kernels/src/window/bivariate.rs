//! Bivariate statistics over frames: covariance, correlation, regression. Device side: `cuda/bivariate.cu`.
//!
//! ```text
//!   x, y ── grow_bivariate ──► states of 8 rows, of 64, … ── fold_bivariate ──► a statistic of each frame
//! ```
//!
//! NULL     a pair counts if both values are valid.
//! Memory   [`bivariate_bytes`]: 48 bytes per state, 6.9 bytes per row.
//! Waits    never.

use millpond_memory::DeviceView;

use crate::codegen::ir::Physical;
use crate::error::KernelError;
use crate::rows::expect_bytes;
use crate::window::{Column, Frame, Out, Positions, Result, Window, levels, put_address};
use crate::{Launch, tune};

/// Bytes of `struct State` in bivariate.cu.
const STATE_BYTES: u64 = 48;

/// Statistic of the pairs of a frame: `enum Statistic` in bivariate.cu.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Statistic {
    CovarPop,
    CovarSamp,
    Corr,
    RegrSlope,
    RegrIntercept,
    /// A u64; the other statistics are doubles.
    RegrCount,
    RegrR2,
    RegrAvgX,
    RegrAvgY,
    RegrSxx,
    RegrSyy,
    RegrSxy,
}

/// Two columns of doubles.
#[derive(Debug, Clone)]
pub struct Bivariate {
    pub x: Column,
    pub y: Column,
}

/// Bytes of the states of `rows` rows.
pub fn bivariate_bytes(rows: u64) -> u64 {
    levels(rows).map(|(states, _)| states * STATE_BYTES).sum::<u64>().max(STATE_BYTES)
}

impl Window<'_> {
    /// Builds the states of pairs in `tree`, a buffer of [`bivariate_bytes`] bytes.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, and for columns that are not doubles.
    pub fn grow_bivariate(&self, columns: &Bivariate, tree: &DeviceView) -> Result<()> {
        columns.check(self.bound())?;
        expect_bytes("window", "states", tree, bivariate_bytes(self.bound()))?;
        let mut below: Option<DeviceView> = None;
        let mut end = 0;
        for (states, each) in levels(self.bound()) {
            let level = tree.view(end..end + (states * STATE_BYTES) as usize)?;
            end += level.len();
            let config = self.striding(states);
            match &below {
                None => {
                    let kernel = self.images.kernel("bivariate", "bivariate_leaves")?;
                    let launch = Launch::new(&kernel, config).bytes(&columns.bytes(), 8).write(&level);
                    self.submit(columns.read_by(launch))?;
                }
                Some(below) => {
                    let kernel = self.images.kernel("bivariate", "bivariate_nodes")?;
                    let launch = Launch::new(&kernel, config).read(below).write(&level);
                    self.submit(launch.value(each / u64::from(tune::WINDOW_FANOUT)))?;
                }
            }
            below = Some(level);
        }
        Ok(())
    }

    /// Computes a statistic of each row's frame from the states that [`grow_bivariate`](Self::grow_bivariate) built.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, for columns that are not doubles, and for results that are not
    /// 64 bits wide.
    pub fn fold_bivariate(
        &self,
        positions: &Positions,
        frame: &Frame,
        columns: &Bivariate,
        (statistic, tree): (Statistic, &DeviceView),
        out: &Out,
    ) -> Result<()> {
        columns.check(self.bound())?;
        out.check(self.bound())?;
        expect_bytes("window", "states", tree, bivariate_bytes(self.bound()))?;
        if out.physical.width() != 8 {
            return Err(KernelError::Shape { what: "window", why: format!("a statistic as {:?}", out.physical) });
        }
        let mut bytes = frame.bytes();
        bytes.extend(columns.bytes());
        let mut end = 0;
        let mut addresses = [0u64; tune::WINDOW_LEVELS as usize];
        for ((states, _), address) in levels(self.bound()).zip(&mut addresses) {
            *address = tree.address().0 + end;
            end += states * STATE_BYTES;
        }
        addresses.iter().for_each(|address| bytes.extend(address.to_le_bytes()));
        bytes.extend((statistic as u32).to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        let kernel = self.images.kernel("bivariate", "bivariate_fold")?;
        let launch = positions.put(Launch::new(&kernel, self.striding(self.bound()))).bytes(&bytes, 8);
        self.submit(out.put(frame.read_by(columns.read_by(launch)).reads(tree)))
    }
}

impl Bivariate {
    fn check(&self, rows: u64) -> Result<()> {
        for column in [&self.x, &self.y] {
            if column.physical != Physical::F64 {
                return Err(KernelError::Shape { what: "window", why: format!("pairs of {:?}", column.physical) });
            }
            column.check("an argument", rows)?;
        }
        Ok(())
    }

    /// Bytes of `struct Bivariate` in bivariate.cu.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32);
        put_address(&mut bytes, Some(&self.x.values));
        put_address(&mut bytes, Some(&self.y.values));
        put_address(&mut bytes, self.x.validity.as_ref());
        put_address(&mut bytes, self.y.validity.as_ref());
        bytes
    }

    fn read_by<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        self.y.read_by(self.x.read_by(launch))
    }
}
