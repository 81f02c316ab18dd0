//! Keeps long blocking work off the few worker threads of the runtime.
//!
//!   worker ─ task A ─ off_workers { assemble, evaluate, wait for a lock } ─ task A
//!        └─ tasks B, C ─► another thread                      meanwhile

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs work that blocks the thread for milliseconds. Other tasks of this worker thread move to another thread
/// meanwhile.
pub(crate) fn off_workers<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn work_off_the_workers_stops_no_other_task() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a runtime");
        let (sender, receiver) = mpsc::channel();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let working = runtime.spawn(async move {
            off_workers(|| {
                begun.send(()).expect("the other task waits");
                receiver.recv().expect("the other task goes on")
            })
        });
        // Without another worker thread this task could not run before the first one ends.
        let other = runtime.spawn(async move {
            begins.await.expect("it begins");
            sender.send(7).expect("the first task waits");
        });
        let both = async { (working.await.expect("it ends"), other.await.expect("it ends")) };
        assert_eq!(
            runtime
                .block_on(async { tokio::time::timeout(std::time::Duration::from_secs(60), both).await })
                .expect("in time")
                .0,
            7
        );
    }

    #[test]
    fn a_runtime_of_one_thread_works_itself() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        assert_eq!(runtime.block_on(async { off_workers(|| 7) }), 7);
        assert_eq!(off_workers(|| 7), 7);
    }
}
