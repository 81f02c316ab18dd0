//! Setups of sessions that queries are compared under, and which of them a query runs in.

use millpond::IntegerOverflow;
use millpond::options::Cache;
use millpond_memory::Strategy;

use super::pair::Order;
use super::query::Query;
use super::rng::Rng;

/// How a session on a device is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub batch_rows: usize,
    pub partitions: usize,
    /// Schedule of a simulated device; a shared device has its own.
    pub sim_seed: usize,
    pub target_partitions: usize,
    /// Hash joins are partitioned, whatever their size.
    pub partitioned: bool,
    pub limits: Limits,
    pub deterministic_floats: bool,
    /// Setting of both sides.
    pub integer_overflow: IntegerOverflow,
    /// Memory resource of a simulated device; a shared device has its own.
    pub memory_resource: Strategy,
    /// Whether columns stay on the device.
    pub cache: Cache,
    /// Every n-th result that a repeated query reuses from earlier runs is falsified; 0 for none.
    pub surprises: usize,
}

/// Limits of a session; 0 for those outside of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of device memory.
    pub memory: usize,
    /// Values of a string column's dictionary.
    pub dictionary_values: usize,
    /// Groups that a hash table has room for at first.
    pub groups_at_first: usize,
    /// Bytes of stored columns.
    pub cache_bytes: usize,
    /// Rows, and bytes of texts, of a stored column.
    pub cache_rows: usize,
    pub cache_text_bytes: usize,
}

impl Limits {
    const NONE: Limits = Limits {
        memory: 0,
        dictionary_values: 0,
        groups_at_first: 0,
        cache_bytes: 0,
        cache_rows: 0,
        cache_text_bytes: 0,
    };
}

const fn variant(batch_rows: usize, partitions: usize, sim_seed: usize, target_partitions: usize) -> Variant {
    Variant {
        batch_rows,
        partitions,
        sim_seed,
        target_partitions,
        partitioned: false,
        limits: Limits::NONE,
        deterministic_floats: false,
        integer_overflow: IntegerOverflow::Wrap,
        memory_resource: Strategy::CudaAsync,
        cache: Cache::Auto,
        surprises: 0,
    }
}

/// Like `variant`, but every table is fed anew.
const fn fed(variant: Variant) -> Variant {
    Variant { cache: Cache::Off, ..variant }
}

/// Like `variant`, but whole numbers are checked for overflow.
const fn checked(variant: Variant) -> Variant {
    Variant { integer_overflow: IntegerOverflow::Error, ..variant }
}

/// The variants; query `n` runs under the `n`-th, modulo their number.
pub const VARIANTS: [Variant; 13] = [
    variant(0, 4, 0, 4),
    fed(variant(100, 1, 0, 1)),
    Variant { surprises: 2, ..variant(30, 3, 11, 4) },
    Variant { partitioned: true, ..variant(0, 1, 12, 3) },
    fed(variant(7, 2, 13, 2)),
    checked(Variant {
        partitioned: true,
        limits: Limits { groups_at_first: 3, ..Limits::NONE },
        ..variant(100, 4, 0, 4)
    }),
    fed(Variant { limits: Limits { memory: 192 << 10, ..Limits::NONE }, ..variant(50, 2, 14, 3) }),
    checked(Variant {
        limits: Limits { dictionary_values: 3, groups_at_first: 1, ..Limits::NONE },
        ..variant(40, 3, 15, 3)
    }),
    checked(fed(variant(3, 1, 0, 2))),
    Variant { deterministic_floats: true, ..variant(16, 4, 16, 1) },
    // The cache is so small that columns evict each other constantly.
    Variant {
        memory_resource: Strategy::Caching,
        limits: Limits { cache_bytes: 16 << 10, ..Limits::NONE },
        ..variant(64, 2, 17, 3)
    },
    Variant { partitioned: true, memory_resource: Strategy::Arena, ..variant(3, 3, 18, 4) },
    // Longer tables than m64 are fed, and so are its texts, beside stored ones.
    Variant {
        limits: Limits { dictionary_values: 3, cache_rows: 100, cache_text_bytes: 400, ..Limits::NONE },
        ..variant(30, 2, 19, 3)
    },
];

/// Variants that have a name.
pub const NAMED: [(&str, usize); 1] = [("bounds", VARIANTS.len() - 1)];

/// The variant that is called by a name or a number.
pub fn variant_of(text: &str) -> Option<usize> {
    let named = NAMED.iter().find(|(name, _)| *name == text).map(|(_, variant)| *variant);
    named.or_else(|| text.parse().ok()).filter(|variant| *variant < VARIANTS.len())
}

/// How a query is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// Index among [`VARIANTS`].
    pub variant: usize,
    /// With its twin, in this order; by itself otherwise.
    pub pair: Option<Order>,
    /// Tables are created from the query, with every n-th reused result falsified; 0 for none.
    pub made: Option<usize>,
}

impl Trial {
    /// Query `number` of a seed, in a variant of its own or in `variant`. Where columns stay, it is with its twin in
    /// half of all queries over all variants.
    pub fn of(seed: u64, number: u64, variant: Option<usize>) -> Trial {
        let variant = variant.unwrap_or(number as usize % VARIANTS.len());
        let mut rng = Rng::new(seed ^ 0x7717, number);
        let pair = (VARIANTS[variant].cache == Cache::Auto && rng.chance(72))
            .then(|| rng.pick(&[Order::InTurn, Order::InRows, Order::Doors, Order::Anew]));
        let mut rng = Rng::new(seed ^ 0x3ade, number);
        // Those with a twin have no table.
        let made = (pair.is_none() && rng.chance(20)).then(|| rng.pick(&[0, 0, 1, 2, 3]));
        Trial { variant, pair, made }
    }

    pub fn alone(variant: usize) -> Trial {
        Trial { variant, pair: None, made: None }
    }

    /// Query `number` of a seed, as it is tried: one of a pair has one more test against constants in most cases.
    pub fn query(&self, seed: u64, number: u64) -> Query {
        let query = Query::random(seed, number);
        let mut rng = Rng::new(seed ^ 0x7e57, number);
        if self.pair.is_some() && rng.chance(70) { query.tested(&mut rng) } else { query }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_queries_have_a_twin() {
        let trials: Vec<Trial> = (0..3000).map(|number| Trial::of(5, number, None)).collect();
        let pairs = trials.iter().filter(|trial| trial.pair.is_some()).count();
        assert!((1400..1600).contains(&pairs), "{pairs} of 3000");
        assert!(trials.iter().all(|trial| trial.pair.is_none() || VARIANTS[trial.variant].cache == Cache::Auto));
        for order in [Order::InTurn, Order::InRows, Order::Doors, Order::Anew] {
            assert!(trials.iter().filter(|trial| trial.pair == Some(order)).count() > 150, "{order:?}");
        }
    }

    #[test]
    fn a_tenth_of_the_queries_is_made_a_table_of() {
        let trials: Vec<Trial> = (0..3000).map(|number| Trial::of(5, number, None)).collect();
        let made = |each| trials.iter().filter(|trial| trial.made == each).count();
        assert!((270..400).contains(&(3000 - made(None))), "{} of 3000", 3000 - made(None));
        assert!([0, 1, 2, 3].iter().all(|each| made(Some(*each)) > 30));
        assert!(trials.iter().all(|trial| trial.made.is_none() || trial.pair.is_none()));
    }

    #[test]
    fn variants_by_name_and_number() {
        let bounds = variant_of("bounds").expect("a variant");
        assert!(VARIANTS[bounds].limits.cache_rows > 0 && VARIANTS[bounds].limits.cache_text_bytes > 0);
        assert_eq!(variant_of("3"), Some(3));
        assert_eq!([variant_of("13"), variant_of("tight")], [None, None]);
        assert_eq!(Trial::of(1, 3, Some(bounds)).variant, bounds);
    }
}
