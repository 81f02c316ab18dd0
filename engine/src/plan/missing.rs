//! DataFusion rules and factories that the engine wraps by name, and that a session lacks.
//!
//! In a session with DataFusion's own lists a missing name is an error. A session with an application's lists may lack
//! some; their mends are then inactive, and [`crate::Millpond::unmended`] names them.

/// Names that are missing.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Missing(Vec<&'static str>);

impl Missing {
    pub fn note(&mut self, name: &'static str) {
        if !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    pub fn names(&self) -> &[&'static str] {
        &self.0
    }
}
