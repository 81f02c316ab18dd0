//! Bivariate statistics in a window: covariance, correlation and regression, over a tree of states.
//!
//!   f(y, x)      states of 8 pairs, of 64, of 512 …: counts, means, and sums of squares and products about the means
//!   frame        at most 14 states of each level, combined
//!
//! NULL    a pair counts if both are valid; statistics of too few pairs are NULL, as in DataFusion.
//! Floats  a frame's statistic is computed from its pairs. DataFusion subtracts what leaves a frame, so that in a
//!         sliding frame of equal values a sum of squares may remain, and with it a meaningless slope.
//! Memory  6.9 bytes per row for the states, while one function is computed.
//! Waits   never.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use millpond_kernels::codegen::ir::{Repr, Ty};
use millpond_kernels::window::{Bivariate, Out, Positions, Statistic, Window, bivariate_bytes};

use crate::column::Form;
use crate::error::failure::Failure;
use crate::error::reason::Reason;
use crate::operator::window::describe::{Function, refused};
use crate::operator::window::lower::{Columns, LoweredFrame, Work};
use crate::operator::window::run::{Windows, column, frame_of};
use crate::program::part::Part;

/// A statistic of two columns.
#[derive(Debug, Clone)]
pub(crate) struct LoweredBivariate {
    pub statistic: Statistic,
    pub y: usize,
    pub x: usize,
    pub frame: LoweredFrame,
}

/// The statistic of DataFusion's function `name`.
pub(super) fn statistic(name: &str) -> Option<Statistic> {
    Some(match name {
        "covar_pop" => Statistic::CovarPop,
        "covar_samp" => Statistic::CovarSamp,
        "corr" => Statistic::Corr,
        "regr_slope" => Statistic::RegrSlope,
        "regr_intercept" => Statistic::RegrIntercept,
        "regr_count" => Statistic::RegrCount,
        "regr_r2" => Statistic::RegrR2,
        "regr_avgx" => Statistic::RegrAvgX,
        "regr_avgy" => Statistic::RegrAvgY,
        "regr_sxx" => Statistic::RegrSxx,
        "regr_syy" => Statistic::RegrSyy,
        "regr_sxy" => Statistic::RegrSxy,
        _ => return None,
    })
}

impl Columns<'_, '_> {
    /// A bivariate statistic: `f(y, x)`.
    pub(super) fn bivariate(
        &mut self,
        function: &Function,
        statistic: Statistic,
        arguments: &[Arc<dyn PhysicalExpr>],
        frame: LoweredFrame,
    ) -> Result<(Work, Form), Reason> {
        let [y, x] = arguments else {
            return Err(refused(&function.name, "it takes two arguments on the device"));
        };
        let ((y, of_y), (x, of_x)) = (self.add(y)?, self.add(x)?);
        if [of_y, of_x].iter().any(|value| self.ty(value).repr != Repr::F64) {
            return Err(refused(&function.name, "it takes floats of 64 bits on the device"));
        }
        let ty = match statistic {
            Statistic::RegrCount => Ty::new(Repr::U64).within(0, 1 << 31),
            _ => Ty::new(Repr::F64).nullable(true),
        };
        Ok((Work::Bivariate(LoweredBivariate { statistic, y, x, frame }), Form::Plain(ty)))
    }
}

impl Windows<'_> {
    /// Writes a statistic of each frame.
    pub(super) fn bivariate(
        &self,
        (window, positions): (&Window<'_>, &Positions),
        of: &LoweredBivariate,
        ordered: &Part,
        out: &Out,
    ) -> Result<(), Failure> {
        let run = &self.segment.run;
        let columns = Bivariate { x: column(ordered, of.x)?, y: column(ordered, of.y)? };
        let bytes = bivariate_bytes(window.rows.upper_bound()) as usize;
        let (tree, _promise) = run.context.memory.take(bytes, &run.context.tags.sort, self.stream)?;
        window.grow_bivariate(&columns, tree.as_view())?;
        self.count(window.grow_launches());
        let frame = frame_of(&of.frame, ordered)?;
        window.fold_bivariate(positions, &frame, &columns, (of.statistic, tree.as_view()), out)?;
        Ok(())
    }
}
