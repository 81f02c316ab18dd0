//! Owners of a stored table: the sessions that have created or read it.
//!
//! A session is identified by an extension of its configuration, which exists as long as the session.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use datafusion::execution::config::SessionConfig;

/// Identity of a session.
pub(crate) struct SessionMark(());

impl SessionMark {
    /// Adds a unique mark to a session.
    pub fn add_to(config: &mut SessionConfig) {
        config.set_extension(Arc::new(Self(())));
    }
}

/// Sessions that have created or read a table.
#[derive(Default)]
pub(super) struct Owners(Mutex<Vec<Weak<SessionMark>>>);

impl std::fmt::Debug for Owners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} sessions", self.marks().len())
    }
}

impl Owners {
    fn marks(&self) -> MutexGuard<'_, Vec<Weak<SessionMark>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the session of this configuration.
    pub fn add(&self, session: &SessionConfig) {
        let Some(session) = session.get_extension::<SessionMark>() else { return };
        let mut marks = self.marks();
        if marks.iter().any(|mark| mark.as_ptr() == Arc::as_ptr(&session)) {
            return;
        }
        marks.retain(|mark| mark.strong_count() > 0);
        marks.push(Arc::downgrade(&session));
    }

    /// True if the session of this configuration is an owner.
    pub fn have(&self, session: &SessionConfig) -> bool {
        let Some(session) = session.get_extension::<SessionMark>() else { return false };
        self.marks().iter().any(|mark| mark.as_ptr() == Arc::as_ptr(&session))
    }
}
