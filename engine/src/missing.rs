//! DataFusion's rules and factories that the engine wraps by name, and that a session does not have.
//!
//! A session with DataFusion's own lists lacks none: a name that is missing there is an error. A session with lists of the program's own
//! may lack some; nothing of them is mended then, and [`crate::Millpond::unmended`] names them.

/// Names that were not found.
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
