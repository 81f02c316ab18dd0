//! The self-test on the simulated device: every check passes, and a broken device is noticed.

use millpond::{DeviceChoice, Fallback, Millpond, SelftestOptions, selftest};

use crate::support::session_with;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_check_passes() {
    let session = session_with(DeviceChoice::Sim, 4, Fallback::Allow);
    let mut heard = 0;
    let outcomes = selftest(&session, SelftestOptions::default(), |_| heard += 1).await.expect("there is a device");
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.result.is_err()).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(heard, outcomes.len());
    assert_eq!(session.pool_used_bytes(), 0);
    let mut names: Vec<&str> = outcomes.iter().map(|outcome| outcome.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), outcomes.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_device_is_noticed() {
    let builder = Millpond::builder().with_own_engine().with_device(DeviceChoice::Sim);
    let session = builder.with_option("debug_sim_lose_at_launch", "3").expect("taken").build().expect("a device");
    let outcomes = selftest(&session, SelftestOptions::default(), |_| ()).await.expect("there is a device");
    assert!(outcomes.iter().any(|outcome| outcome.result.as_ref().is_err_and(|why| why.contains("lost"))));
}

#[tokio::test]
async fn without_a_device_there_is_nothing_to_test() {
    let refused =
        selftest(&session_with(DeviceChoice::Cpu, 4, Fallback::Allow), SelftestOptions::default(), |_| ()).await;
    assert!(refused.is_err_and(|error| error.is_device_missing()));
}
