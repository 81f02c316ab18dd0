//! The workload functions compared with independent answers: row-by-row code, plain SQL, and results of an established
//! library.

mod bayes_device;
mod calls;
mod clicks;
mod device;
mod hits;
mod learn_device;
mod learning;
mod operators;
mod ordered;
mod plans;
mod support;
mod surprises;
mod texts;
