//! The tables of the gpu-bdb workload: own generator, own words, statistically like the data that gpu-bdb was published with.

pub mod lexicon;
